"""Byte-level BPE from GPT-2's vocab.json and merges.txt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.faults import BadModel
from penstock.tokenizer.byte_level import LEVEL, WORDS, bpe, split
from penstock.tokenizer.damage import shown
from penstock.tokenizer.description import Description, Json
from penstock.tokenizer.special import (
    CONFIG,
    MODEL,
    added_tokens,
    is_id,
    named_tokens,
    read_json,
    tokenizer_class,
)

MERGES = "merges.txt"
GPT2, QWEN2, ROBERTA = "GPT2Tokenizer", "Qwen2Tokenizer", "RobertaTokenizer"
SAME_AS = {
    **dict.fromkeys((GPT2, "CodeGenTokenizer"), GPT2),
    QWEN2: QWEN2,
    ROBERTA: ROBERTA,
}
"""The classes that are converted, and the class whose behaviour each one has."""
OF_MODEL = {
    **dict.fromkeys(("codegen", "gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2"), GPT2),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"), QWEN2),
    "roberta": ROBERTA,
}
"""The class that transformers takes for a model_type, where tokenizer_config.json names none."""
END = "<|endoftext|>"
NAMES = {
    GPT2: {"bos_token": END, "eos_token": END, "unk_token": END},
    QWEN2: {"eos_token": END, "unk_token": END, "pad_token": END},
    ROBERTA: {
        **dict.fromkeys(("bos_token", "cls_token"), "<s>"),
        **dict.fromkeys(("eos_token", "sep_token"), "</s>"),
        **{f"{name}_token": f"<{name}>" for name in ("unk", "pad", "mask")},
    },
}
"""The special tokens of each class that the files need not name."""
OPT_NAMES = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")


def describe(path: Path, config: Mapping[str, Any]) -> Description:
    """Converts vocab.json and the merges.txt beside it; `config` is tokenizer_config.json.

    Raises BadModel for damaged files, and for a tokenizer class that is not byte-level BPE.
    """
    folder = path.parent
    model_type = read_json(folder / MODEL).get("model_type")
    kind = _kind(path, config, model_type)
    vocab = _vocab(path)
    opt = model_type == "opt"
    names = named_tokens(folder, config, OPT_NAMES if opt else NAMES[kind])
    added = added_tokens(folder, config, names, vocab)
    begin, end = _around(kind, names, begins=bool(config.get("add_bos_token", opt)))
    known = {token.text for token in added}
    for name in filter(None, (begin, end)):
        if name not in known:
            raise BadModel(f"{path}: the special token {name!r}, which texts get, has no id")
    return Description(
        bpe(vocab, _merges(folder / MERGES, vocab), added),
        added,
        {"type": "NFC"} if kind == QWEN2 else None,
        _pre_tokenizer(kind, prefix=bool(config.get("add_prefix_space"))),
        LEVEL,
        begin,
        end,
        {name: text for name, text in names.items() if text in known},
    )


def _kind(path: Path, config: Mapping[str, Any], model_type: object) -> str:
    named = tokenizer_class(config)
    if named is None:
        if model_type in OF_MODEL:
            return OF_MODEL[str(model_type)]
        raise BadModel(
            f"{path}: {CONFIG} must name the tokenizer_class, as model_type {model_type!r} implies "
            f"none; supported: {', '.join(SAME_AS)}"
        )
    kind = SAME_AS.get(named.removesuffix("Fast"))
    if kind is None:
        raise BadModel(
            f"{path}: tokenizer_class {named!r} is not supported; supported: {', '.join(SAME_AS)}. "
            "A tokenizer.json in the folder, as transformers saves it, is read whatever the class"
        )
    return kind


def _around(kind: str, names: Mapping[str, str], *, begins: bool) -> tuple[str | None, str | None]:
    """Returns the tokens before and after each text."""
    if kind == ROBERTA:
        return names["cls_token"], names["sep_token"]
    return (names.get("bos_token") if begins else None), None


def _pre_tokenizer(kind: str, *, prefix: bool) -> Json:
    if kind == QWEN2:
        return split(WORDS % "")
    return LEVEL | {"add_prefix_space": prefix, "use_regex": True}


def _vocab(path: Path) -> dict[str, int]:
    vocab = read_json(path)
    for text, number in vocab.items():
        if not is_id(number):
            raise BadModel(f"{path}: the token {text!r} must have an id, found {number!r:.80}")
    if len(set(vocab.values())) != len(vocab) or not vocab:
        raise BadModel(f"{path} must give each of its tokens an id of its own")
    return vocab


def _merges(path: Path, vocab: Mapping[str, int]) -> list[list[str]]:
    """Reads lines of two tokens."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise BadModel(f"{path} is damaged: {error}") from error
    merges = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocab.keys():
            raise BadModel(
                f"{path}: line {number} must be two tokens of vocab.json that make a third, "
                f"found {shown(line.encode())}"
            )
        merges.append(pair)
    return merges
