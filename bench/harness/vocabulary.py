"""A tokenizer of any size, made rather than learned: byte-level BPE whose words are syllables.

Benchmarks need a vocabulary of real size (128k entries), not one that suits a language. A word is
a space and up to three syllables of a consonant and a vowel. Nothing else merges, so each word is
one token, and any sequence of word tokens becomes a text that gives the same tokens again.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"
SPACE = "Ġ"


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in the order of the bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in kept]
    table = {byte: chr(byte) for byte in kept} | {b: chr(256 + i) for i, b in enumerate(rest)}
    return [table[byte] for byte in range(256)]


def merges(count: int) -> list[tuple[str, str]]:
    """The first `count` merges: letters to syllables, then words grown by a syllable at a time."""
    letters = list(product(CONSONANTS, VOWELS))
    syllables = ["".join(pair) for pair in letters]
    rules, words = letters, [SPACE]
    while len(rules) < count:
        grown = list(product(words, syllables))
        rules, words = rules + grown, ["".join(rule) for rule in grown]
    return rules[:count]


def write_model(folder: Path, size: int = 128_000) -> None:
    """Writes config.json and the tokenizer files of a model without weights."""
    end = write_tokenizer(folder, size)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": end + 1,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "eos_token_id": end,
    }
    (folder / "config.json").write_text(json.dumps(config))


def write_tokenizer(folder: Path, size: int) -> int:
    """Writes tokenizer files of `size` entries; returns the id of the last, the end token."""
    alphabet = byte_alphabet()
    rules = merges(size - len(alphabet) - 1)
    tokens = [*alphabet, *("".join(rule) for rule in rules)]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    end = len(vocabulary)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": end,
                "content": "</s>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [list(rule) for rule in rules]},
    }
    # Named, because transformers would choose a class by the model's type, with tokens of its own.
    kind = "PreTrainedTokenizerFast"
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("tokenizer.json", tokenizer),
        (
            "tokenizer_config.json",
            {"tokenizer_class": kind, "eos_token": "</s>", "chat_template": template},
        ),
    ):
        (folder / name).write_text(json.dumps(content))
    return end
