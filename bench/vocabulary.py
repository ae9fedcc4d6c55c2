"""A tokenizer of any size, made rather than learned: byte-level BPE with systematic merges.

Benchmarks need a vocabulary of real size (128k entries), not one that suits a language.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in the order of the bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in kept]
    table = {byte: chr(byte) for byte in kept} | {b: chr(256 + i) for i, b in enumerate(rest)}
    return [table[byte] for byte in range(256)]


def merges(count: int) -> list[tuple[str, str]]:
    """`count` merges: letters to pairs, pairs to fours, and the same after a space."""
    space = "Ġ"
    pairs = ["".join(p) for p in product(LETTERS, repeat=2)]
    rules = [(a, b) for a, b in product(LETTERS, repeat=2)]
    rules += [(space, pair) for pair in pairs]
    rules += list(product(pairs, repeat=2))[: count - len(rules)]
    return rules[:count]


def write_model(folder: Path, size: int = 128_000) -> None:
    """Writes config.json and the tokenizer files of a model without weights."""
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
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
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
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", {"eos_token": "</s>", "chat_template": template}),
        ("config.json", config),
    ):
        (folder / name).write_text(json.dumps(content))
