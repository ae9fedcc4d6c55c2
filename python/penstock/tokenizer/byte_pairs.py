"""Byte-level BPE from tokens in the order of their merges, as tiktoken and Mistral's tekken store
them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.faults import BadModel
from penstock.tokenizer.description import AddedToken, Description, Json

Ranks = dict[bytes, int]

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen split a text. `%s` limits how many digits stay together."""
LLAMA_TOKENS = 256  # special tokens after the ranks
LLAMA_NAMES = (
    *("begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"),
    *("finetune_right_pad_id", "reserved_special_token_2", "start_header_id", "end_header_id"),
    *("eom_id", "eot_id", "python_tag"),
)
"""The first of them, as Llama 3.1 names them."""
QWEN_EXTRA = 205
TEKKEN_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
"""The special tokens of files that do not list them."""


def llama(path: Path) -> Description:
    """Converts Llama 3's tokenizer.model. Raises BadModel for another format."""
    ranks = read_ranks(path)
    named = LLAMA_NAMES
    reserved = (f"reserved_special_token_{n}" for n in range(3, LLAMA_TOKENS - len(named) + 3))
    texts = [f"<|{name}|>" for name in (*named, *reserved)]
    added = [AddedToken(len(ranks) + n, text, True) for n, text in enumerate(texts)]
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    pattern = WORDS % "{1,3}"
    return _described(ranks, pattern, added, begin="<|begin_of_text|>", names=names)


def qwen(path: Path) -> Description:
    """Converts Qwen 1's *.tiktoken. Raises BadModel for another format."""
    ranks = read_ranks(path)
    texts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    texts += [f"<|extra_{n}|>" for n in range(QWEN_EXTRA)]
    added = [AddedToken(len(ranks) + n, text, True) for n, text in enumerate(texts)]
    names = {"eos_token": "<|im_end|>"}
    return _described(ranks, WORDS % "", added, normalizer={"type": "NFC"}, names=names)


def tekken(path: Path) -> Description:
    """Converts Mistral's tekken.json. Raises BadModel for another format."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        config = content["config"]
        special = int(config["default_num_special_tokens"])
        size = int(config["default_vocab_size"]) - special
        entries = sorted(content["vocab"], key=lambda entry: entry["rank"])[:size]
        ranks = {
            base64.b64decode(entry["token_bytes"]): special + n for n, entry in enumerate(entries)
        }
        listed = content.get("special_tokens")
        named = [(entry["rank"], entry["token_str"]) for entry in listed or ()]
        pattern = config["pattern"]
    except (KeyError, TypeError, ValueError) as error:
        raise BadModel(f"{path} is not a tekken tokenizer: {error!r}") from error
    texts = dict(named or enumerate(TEKKEN_TOKENS))
    texts |= {n: f"<SPECIAL_{n}>" for n in range(special) if n not in texts}
    added = [AddedToken(n, text, True) for n, text in sorted(texts.items())]
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return _described(ranks, pattern, added, begin="<s>", names=names)


def read_ranks(path: Path) -> Ranks:
    """Reads lines of a token in base64 and its rank. Raises BadModel for another format."""
    ranks: Ranks = {}
    try:
        for line in path.read_bytes().splitlines():
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (ValueError, binascii.Error) as error:
        raise BadModel(f"{path} is not a tiktoken vocabulary: {error}") from error
    if sorted(ranks.values()) != list(range(len(ranks))) or len(ranks) < 256:
        raise BadModel(f"{path} is not a tiktoken vocabulary: its ranks are not 0, 1, 2, ...")
    return ranks


def _described(
    ranks: Ranks,
    pattern: str,
    added: list[AddedToken],
    *,
    begin: str | None = None,
    names: Mapping[str, str],
    normalizer: Json | None = None,
) -> Description:
    letters = _letters()
    # An added token keeps its id only if the model has it too.
    vocab = {token.text: token.id for token in added}
    vocab |= {_spelt(token, letters): rank for token, rank in ranks.items()}
    merges = [[_spelt(left, letters), _spelt(right, letters)] for left, right in _merges(ranks)]
    model: dict[str, Any] = {
        "type": "BPE",
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix"), None),
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": True,
        "vocab": vocab,
        "merges": merges,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    byte_level["use_regex"] = False
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    return Description(model, added, normalizer, pre_tokenizer, byte_level, begin, names)


def _merges(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """Returns the merge of each token of several bytes: the parts that lower ranks leave of it."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda entry: entry[1]):
        if len(token) > 1:
            parts = _parts(token, rank, ranks)
            if len(parts) == 2:
                merges.append((parts[0], parts[1]))
    return merges


def _parts(token: bytes, limit: int, ranks: Ranks) -> list[bytes]:
    """Merges the bytes of a token by all ranks below `limit`."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 1:
        pairs = [ranks.get(a + b, limit) for a, b in pairwise(parts)]
        lowest = min(pairs)
        if lowest >= limit:
            break
        at = pairs.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _letters() -> list[str]:
    """Returns the printable letter of each byte, as GPT-2 assigns them."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _spelt(token: bytes, letters: list[str]) -> str:
    return "".join(letters[byte] for byte in token)
