"""A model with two kinds of states behind the server: tokens equal those of `transformers`.

Sequences of Qwen4-Exp have states of linear attention and of n-grams, in groups of blocks of their
own, which the scheduler forks, checks and evicts together.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from random_models import BROOK, Variant, check_tokens, write_random
from transformers import AutoTokenizer, Qwen4ExpTextConfig

VARIANTS: dict[str, Variant] = {
    "plain": ([], "penstock_prefix_hit_tokens"),
    "preempted": (["--kv-memory", "4MiB", "--max-step-tokens", "256"], "penstock_preemptions"),
    "two workers": (["--tp", "2"], "penstock_prefix_hit_tokens"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with brook's tokenizer; the second of three layers attends to blocks."""
    config = Qwen4ExpTextConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(BROOK)),
        hidden_size=64,
        num_hidden_layers=3,
        layer_types=["linear_attention", "indexed_attention", "linear_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        hc_count=2,
        hc_lowrank=16,
        ple_layer_ids=[1, 3],
        heads_per_ngram=4,
        ngram_vocab_size_base=90,
        split_ngram_parts=3,
        indexer_n_heads=16,
        indexer_kv_heads=1,
        indexer_head_dim=32,
        indexer_budget=64,
        indexer_compress_ratio=8,
        eos_token_id=5,
        max_position_embeddings=2048,
    )
    return write_random(tmp_path_factory.mktemp("qwen"), config)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_equal_transformers(
    tmp_path: Path,
    model: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    variant: str,
) -> None:
    check_tokens(tmp_path / "serve.log", model, prompts, expected, VARIANTS[variant])
