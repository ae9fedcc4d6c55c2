"""The parts of tokenizer.json that byte-level BPE has, whatever file it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.tokenizer.description import AddedToken, Json

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3, Qwen and Hunyuan split a text. `%s` limits how many digits stay together."""
LEVEL: Json = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}
"""Spells each byte as a letter, and decodes them."""


def letters() -> list[str]:
    """Returns the printable letter of each byte, as GPT-2 assigns them."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


LETTERS = letters()


def bpe(
    vocab: Mapping[str, int], merges: Sequence[Sequence[str]], added: Sequence[AddedToken]
) -> Json:
    """Returns the model of a vocabulary and its merges, the first first."""
    return {
        "type": "BPE",
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix"), None),
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        # An added token keeps its id only if the model has it too.
        "vocab": {token.text: token.id for token in added} | dict(vocab),
        "merges": list(merges),
    }


def split(pattern: str) -> Json:
    """Returns the pre-tokenizer that splits a text by a regular expression."""
    by_pattern = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [by_pattern, LEVEL]}
