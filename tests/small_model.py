"""A small model for tests in which the text does not matter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BROOK = Path(__file__).resolve().parents[1] / "python/penstock/brook"


def write_llama(path: Path) -> Path:
    """Writes a small Llama with random weights and all other files of brook.

    A token in float64 takes a fifth of brook's time. The weights are large, so that two logits are
    not nearly equal.
    """
    shutil.copytree(BROOK, path, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    known = json.loads((BROOK / "config.json").read_text())
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=known["vocab_size"],
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        eos_token_id=known["eos_token_id"],
    )
    LlamaForCausalLM(config).float().save_pretrained(path)
    return path
