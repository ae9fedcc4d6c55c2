"""A model with full and sliding layers behind the server: tokens equal those of `transformers`.

The scheduler of the router and the tables of the workers agree on two KV groups here: prompts are
longer than the window, share a beginning, and are preempted where memory is short.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from random_models import BROOK, Variant, check_tokens, write_random
from transformers import AutoTokenizer, Gemma3TextConfig

WINDOW = 32
VARIANTS: dict[str, Variant] = {
    "plain": ([], "penstock_prefix_hit_tokens"),
    "16-token chunks": (["--max-step-tokens", "16"], None),
    "preempted": (["--kv-memory", "2MiB", "--max-step-tokens", "64"], "penstock_preemptions"),
    "two workers": (["--tp", "2"], None),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Gemma 3 with brook's tokenizer; one layer of six sees everything."""
    path = tmp_path_factory.mktemp("gemma")
    config = Gemma3TextConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(BROOK)),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=WINDOW,
        max_position_embeddings=2048,
        query_pre_attn_scalar=16,
    )
    return write_random(path, config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_equal_transformers(
    tmp_path: Path,
    model: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    variant: str,
) -> None:
    check_tokens(tmp_path / "serve.log", model, prompts, expected, VARIANTS[variant])
