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
from penstock.tokenizer.byte_level import LETTERS, LEVEL, WORDS, bpe, split
from penstock.tokenizer.damage import shown
from penstock.tokenizer.description import AddedToken, Description, Json
from penstock.tokenizer.special import CONFIG, custom_code, listed, named_tokens

Ranks = dict[bytes, int]

LLAMA_TOKENS = 256  # special tokens after the ranks
LLAMA_NAMES = (
    *("begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"),
    *("finetune_right_pad_id", "reserved_special_token_2", "start_header_id", "end_header_id"),
    *("eom_id", "eot_id", "python_tag"),
)
"""The first of them, as Llama 3.1 names them."""
HAN, MARKS = r"[\p{Han}]+", r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
UPPER, LOWER = rf"[\p{{Lu}}\p{{Lt}}{MARKS}", rf"[\p{{Ll}}{MARKS}"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_WORDS = "|".join(
    (
        HAN,
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
"""How Kimi splits a text: Chinese characters apart, and words where capitals begin."""
EXTRA = 205  # the last special tokens of Qwen 1 and Hunyuan
KIMI_TOKENS = 256  # special tokens after the ranks
KIMI_CODE = ("tokenization_kimi", "tokenization_moonshot")
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
    """Converts Qwen 1's qwen.tiktoken. Raises BadModel for another format."""
    return _extra(path, ("endoftext", "im_start", "im_end"), {"eos_token": "<|im_end|>"})


def hunyuan(path: Path) -> Description:
    """Converts Hunyuan's hy.tiktoken. Raises BadModel for another format."""
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}
    return _extra(path, ("endoftext", "startoftext", "bos", "eos", "pad"), names)


def _extra(path: Path, first: tuple[str, ...], names: Mapping[str, str]) -> Description:
    """first: the special tokens after the ranks, before <|extra_0|>."""
    ranks = read_ranks(path)
    texts = [f"<|{name}|>" for name in (*first, *(f"extra_{n}" for n in range(EXTRA)))]
    added = [AddedToken(len(ranks) + n, text, True) for n, text in enumerate(texts)]
    return _described(ranks, WORDS % "", added, normalizer={"type": "NFC"}, names=names)


def kimi(path: Path, config: Mapping[str, Any]) -> Description:
    """Converts Kimi's tiktoken.model; `config` is tokenizer_config.json. Raises BadModel."""
    code = custom_code(config).partition(".")[0]
    if code and code not in KIMI_CODE:
        raise BadModel(
            f"{path}: the tokenizer's code is {code!r}; supported: {', '.join(KIMI_CODE)}. "
            "It needs a tokenizer.json"
        )
    ranks, beside = read_ranks(path), path.parent / CONFIG
    named = listed(config, beside)
    first = len(ranks)
    if not named or min(named) < first:
        raise BadModel(
            f"{beside}: added_tokens_decoder must name the special tokens, whose ids follow the "
            f"{first} tokens of {path.name}; found the ids {sorted(named)!r:.80}"
        )
    end = max(first + KIMI_TOKENS, *(number + 1 for number in named))
    reserved = {n: AddedToken(n, f"<|reserved_token_{n}|>", True) for n in range(first, end)}
    added = list((reserved | named).values())
    names = named_tokens(path.parent, config, {"bos_token": "[BOS]", "eos_token": "[EOS]"})
    return _described(ranks, KIMI_WORDS, added, names=names)


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
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise BadModel(
                f"{path} is not a tiktoken vocabulary: line {number} must be a token in base64 "
                f"and its rank, found {shown(line)}"
            ) from None
    if sorted(ranks.values()) != list(range(len(ranks))) or len(ranks) < 256:
        raise BadModel(
            f"{path} is not a tiktoken vocabulary: the ranks of its tokens must be 0, 1, 2, ..., "
            f"for 256 tokens at least; found {len(ranks)} tokens, whose highest rank is "
            f"{max(ranks.values(), default=None)}"
        )
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
    vocab = {_spelt(token): rank for token, rank in ranks.items()}
    merges = [[_spelt(left), _spelt(right)] for left, right in _merges(ranks)]
    return Description(
        bpe(vocab, merges, added) | {"ignore_merges": True},
        added,
        normalizer,
        split(pattern),
        LEVEL,
        begin=begin,
        names=names,
    )


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


def _spelt(token: bytes) -> str:
    return "".join(LETTERS[byte] for byte in token)
