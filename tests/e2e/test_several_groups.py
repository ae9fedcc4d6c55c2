"""Models with several groups of blocks behind the server: tokens equal those of `transformers`.

The scheduler forks, checks, frees and evicts the blocks of all groups of a sequence together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from random_models import BROOK, Variant, check_tokens, write_random
from transformers import (
    AutoTokenizer,
    Dots3NoteTextConfig,
    InklingTextConfig,
    MiniMaxM3VLTextConfig,
    Qwen4ExpTextConfig,
    ZayaConfig,
)

VOCAB = len(AutoTokenizer.from_pretrained(BROOK))


def dots3_note() -> Any:
    """Rows of latents of two sizes: with an index key, and in windows."""
    return Dots3NoteTextConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        num_hidden_layers=3,
        layer_types=["indexed_attention", "sliding_attention", "sliding_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"],
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=32,
        kv_lora_rank=24,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=16,
        sliding_window=40,
        swa_num_attention_heads=2,
        swa_num_key_value_heads=2,
        swa_q_lora_rank=24,
        swa_kv_lora_rank=40,
        swa_head_dim=24,
        swa_qk_nope_head_dim=16,
        swa_v_head_dim=16,
        intermediate_size=96,
        moe_intermediate_size=32,
        shared_experts_intermediate_size=32,
        n_routed_experts=8,
        num_experts_per_tok=3,
        index_n_heads=16,
        index_head_dim=32,
        index_topk=64,
        bos_token_id=1,
        eos_token_id=5,
        pad_token_id=None,
        max_position_embeddings=2048,
    )


def inkling() -> Any:
    """Keys and values with and without a window, and two kinds of states of convolutions."""
    return InklingTextConfig(
        vocab_size=VOCAB,
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


def minimax_m3() -> Any:
    """Keys and values apart in the first layer; rows with an index key in the others, whose heads
    choose blocks."""
    return MiniMaxM3VLTextConfig(
        vocab_size=VOCAB,
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


def qwen4_exp() -> Any:
    """States of linear attention and of n-grams; the second layer attends to blocks."""
    return Qwen4ExpTextConfig(
        vocab_size=VOCAB,
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


def zaya() -> Any:
    """Keys and values with and without a window, and states of convolutions beside both."""
    return ZayaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        num_hidden_layers=3,
        layer_types=["hybrid", "hybrid_sliding", "hybrid"],
        sliding_window=40,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        moe_intermediate_size=32,
        router_hidden_size=48,
        max_position_embeddings=2048,
    )


# With the KV memory that three times the prompts exceed.
MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "dots3_note": (dots3_note, "2MiB"),
    "inkling": (inkling, "4MiB"),
    "minimax_m3": (minimax_m3, "3MiB"),
    "qwen4_exp": (qwen4_exp, "4MiB"),
    "zaya": (zaya, "4MiB"),
}


def variants(memory: str) -> dict[str, Variant]:
    """By name."""
    return {
        "plain": ([], "penstock_prefix_hit_tokens"),
        "preempted": (["--kv-memory", memory, "--max-step-tokens", "256"], "penstock_preemptions"),
        "two workers": (["--tp", "2"], "penstock_prefix_hit_tokens"),
    }


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    """Of a model."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A random model with brook's tokenizer."""
    make, _ = MODELS[name]
    return write_random(tmp_path_factory.mktemp(name), make())


@pytest.mark.parametrize("variant", variants(""))
def test_tokens_equal_transformers(
    tmp_path: Path,
    name: str,
    model: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    variant: str,
) -> None:
    _, memory = MODELS[name]
    chosen = variants(memory)[variant]
    check_tokens(tmp_path / "serve.log", model, prompts, expected, chosen)
