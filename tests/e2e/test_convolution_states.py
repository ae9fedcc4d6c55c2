"""Layers with keys and states behind the server: tokens equal those of `transformers`.

Sequences of Inkling have keys and values with and without a window, and two kinds of states, in
groups of blocks of their own, which the scheduler forks, checks, frees and evicts together.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from random_models import BROOK, Variant, check_tokens, write_random
from transformers import AutoTokenizer, InklingTextConfig

VARIANTS: dict[str, Variant] = {
    "plain": ([], "penstock_prefix_hit_tokens"),
    "preempted": (["--kv-memory", "4MiB", "--max-step-tokens", "256"], "penstock_preemptions"),
    "two workers": (["--tp", "2"], "penstock_prefix_hit_tokens"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with brook's tokenizer."""
    config = InklingTextConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(BROOK)),
        hidden_size=64,
        num_hidden_layers=3,
        layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"],
        mlp_layer_types=["dense", "sparse", "sparse"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=4,
        swa_head_dim=32,
        sliding_window_size=40,
        d_rel=8,
        rel_extent=100,
        log_scaling_n_floor=64,
        intermediate_size=96,
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        logits_mup_width_multiplier=1.0,
        max_position_embeddings=2048,
    )
    return write_random(tmp_path_factory.mktemp("inkling"), config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_equal_transformers(
    tmp_path: Path,
    model: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    variant: str,
) -> None:
    check_tokens(tmp_path / "serve.log", model, prompts, expected, VARIANTS[variant])
