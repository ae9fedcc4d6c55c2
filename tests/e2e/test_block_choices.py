"""A model whose KV heads choose blocks behind the server: tokens equal those of `transformers`.

Sequences of MiniMax-M3 have keys and values apart in one layer, and rows with an index key in the
others, in groups of blocks of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from random_models import BROOK, Variant, check_tokens, write_random
from transformers import AutoTokenizer, MiniMaxM3VLTextConfig

VARIANTS: dict[str, Variant] = {
    "plain": ([], "penstock_prefix_hit_tokens"),
    "preempted": (["--kv-memory", "3MiB", "--max-step-tokens", "256"], "penstock_preemptions"),
    "two workers": (["--tp", "2"], "penstock_prefix_hit_tokens"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with brook's tokenizer; the first of three layers attends to all tokens."""
    config = MiniMaxM3VLTextConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(BROOK)),
        hidden_size=64,
        num_hidden_layers=3,
        layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        mlp_layer_types=["dense", "sparse", "sparse"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        rotary_dim=16,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        intermediate_size=32,
        dense_intermediate_size=96,
        shared_intermediate_size=32,
        num_local_experts=8,
        num_experts_per_tok=3,
        index_n_heads=2,
        index_head_dim=32,
        index_block_size=16,
        index_topk_blocks=3,
        index_local_blocks=1,
        max_position_embeddings=2048,
    )
    return write_random(tmp_path_factory.mktemp("minimax"), config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_equal_transformers(
    tmp_path: Path,
    model: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    variant: str,
) -> None:
    check_tokens(tmp_path / "serve.log", model, prompts, expected, VARIANTS[variant])
