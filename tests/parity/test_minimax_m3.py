"""What MiniMax-M3 has and no other family: choices of KV heads, published fields and names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, prompt, write
from driver import Driver, greedy
from local import LocalWorker, Refused
from penstock.cache import KvShape
from penstock.config import AttentionSpec, read_config
from penstock.faults import BadModel
from penstock.models import family, read_specification
from quantized import assert_equal_model, assert_equal_ranks, error_of_quantizing, quantized
from safetensors.torch import load_file, save_file
from test_dense_families import changed, run
from test_experts import FORMATS
from test_kv_groups import driver_of
from together import beside_a_longer_prompt

Checkpoints = Callable[[str], Path]
WEIGHTS = "model.safetensors"
# Two ranks have inputs in whole groups of 128. All blocks are chosen: rounding changes no choice.
WIDE = {
    "hidden_size": 256,
    "vocab_size": 512,
    "intermediate_size": 256,
    "dense_intermediate_size": 256,
    "shared_intermediate_size": 256,
    "head_dim": 64,
    "index_head_dim": 64,
    "index_topk_blocks": 8,
    "num_experts_per_tok": 8,
    "initializer_range": 0.08,
}
SPARSE = {
    "use_sparse_attention": True,
    "sparse_index_dim": 24,
    "sparse_num_index_heads": 2,
    "sparse_topk_blocks": 2,
    "sparse_block_size": 32,
    "sparse_score_type": "max",
    "sparse_init_block": 0,
    "sparse_local_block": 1,
    "sparse_attention_freq": [0, 1, 1, 0],
    "sparse_disable_index_value": [0, 1, 1, 0],
}
PUBLISHED: dict[str, Any] = {
    "hidden_act": "swigluoai",
    "moe_layer_freq": [0, 0, 1, 1],
    "num_mtp_modules": 7,
    "partial_rotary_factor": 0.5,
    "qk_norm_type": "per_head",
    "rope_theta": 9000.0,
    "scoring_func": "sigmoid",
    "sparse_attention_config": SPARSE,
    "use_gemma_norm": True,
}


def specification(path: Path) -> Any:
    raw = read_config(path)
    return read_specification(family(raw), raw)


def published(path: Path, directory: Path, **fields: Any) -> Path:
    """The checkpoint with published fields of the text."""
    text = json.loads((path / "config.json").read_text())["text_config"]
    dropped = ("layer_types", "mlp_layer_types", "rope_parameters", "rope_theta")
    kept = {
        name: value
        for name, value in text.items()
        if name not in dropped and not name.startswith("index_")
    }
    return changed(path, directory, text_config={**kept, **PUBLISHED, **fields})


def tokens_of(path: Path, **settings: Any) -> list[int]:
    """Greedy tokens after a prompt in chunks."""
    sequence, worker = greedy(prompt(90), 16), LocalWorker()
    driver = Driver([worker], worker.load(path, dtype="float64", **settings))
    driver.enter(sequence)
    driver.finish([sequence], chunk=32)
    driver.stream.close()
    return sequence.tokens


@pytest.mark.parametrize(("ranks", "heads"), [(1, 2), (2, 1), (4, 1)])
def test_rows_of_layers_that_choose(checkpoint: Checkpoints, ranks: int, heads: int) -> None:
    """Value, key and index key; keys and values apart where a query attends to all tokens."""
    full, sparse, *_ = specification(checkpoint("minimax_m3")).softmax_layers
    assert isinstance(sparse, AttentionSpec)
    assert KvShape.of(sparse, ranks) == KvShape(0, heads, 32 + 32 + 24, planes=1)
    assert KvShape.of(full, ranks) == KvShape(0, heads, 32)


@pytest.mark.parametrize("case", ["minimax_m3", "minimax_m3_vl"])
def test_any_size_of_cache_blocks(checkpoint: Checkpoints, case: str) -> None:
    """It may divide a block that is chosen, be a multiple of it, or neither."""
    found = [tokens_of(checkpoint(case), block_tokens=size) for size in (16, 4, 12, 64)]
    assert found[1:] == found[:1] * 3


def test_int8_caches_are_refused(checkpoint: Checkpoints) -> None:
    with pytest.raises(Refused, match="int8 is not supported for multi-head latent attention and"):
        LocalWorker().load(checkpoint("minimax_m3"), kv_dtype="int8")


def test_published_fields(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """They say what transformers' own do. Layers that predict further tokens are not loaded."""
    path = checkpoint("minimax_m3_vl")
    other = published(path, tmp_path)
    assert specification(other) == specification(path)
    tensors = load_file(path / WEIGHTS)
    tensors["language_model.model.mtp.layers.0.weight"] = torch.ones(2, 2)
    (other / WEIGHTS).unlink()
    save_file(tensors, other / WEIGHTS, {"format": "pt"})
    assert tokens_of(other) == tokens_of(path)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"swiglu_limit": 10.0}, "swiglu_limit 10.0 is not supported, only 7.0 is"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha 1.0 is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ({"use_gemma_norm": False}, "use_gemma_norm False"),
        ({"qk_norm_type": "per_layer"}, "qk_norm_type 'per_layer'"),
        ({"attention_output_gate": True}, "attention_output_gate True"),
        ({"n_shared_experts": 2}, "n_shared_experts 2"),
        ({"sliding_window": 24}, "sliding_window 24"),
        ({"moe_layer_freq": 2}, "moe_layer_freq must be a list of 0 and 1"),
        ({"moe_layer_freq": [0, 1]}, "mlp_layer_types must hold dense or sparse for each of 4"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types must hold minimax_m3_sparse or"),
        ({"sparse_num_index_heads": 4}, "index_n_heads 4 is not supported, only 2"),
        ({"sparse_local_block": 3}, "index_local_blocks is 3, above index_topk_blocks, 2"),
        ({"sparse_local_block": 0}, "index_local_blocks must be a whole number"),
        ({"sparse_index_dim": 12}, "16 dimensions of a head rotate, more than an index key has"),
        ({"sparse_init_block": 1}, "sparse_init_block 1 is not supported"),
        ({"sparse_score_type": "mean"}, "sparse_score_type 'mean'"),
        ({"use_sparse_attention": False}, "use_sparse_attention False"),
        ({"sparse_disable_index_value": [0, 1, 0, 0]}, "index values of sparse_attention_config"),
        ({"sparse_window": 24}, "sparse_attention_config.sparse_window 24 is not supported"),
    ],
)
def test_fields_that_are_refused(
    checkpoint: Checkpoints, tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    given = {name: fields.pop(name) for name in list(fields) if "sparse_" in name}
    given = {**SPARSE, **given}
    path = published(checkpoint("minimax_m3_vl"), tmp_path, sparse_attention_config=given, **fields)
    with pytest.raises(BadModel, match=re.escape(text)):
        specification(path)


def test_a_part_of_each_head_rotates(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """By the object of RoPE, or else by `rotary_dim`, which transformers does not read."""
    path = checkpoint("minimax_m3")
    found = []
    for rope, dims in (({"partial_rotary_factor": 0.25}, 16), ({}, 8)):
        rope = {"rope_type": "default", "rope_theta": 9000.0, **rope}
        other = changed(path, tmp_path / str(dims), rope_parameters=rope, rotary_dim=dims)
        found.append(specification(other))
    assert found[0] == found[1] and found[0].softmax_layers[0].rope.fraction == 0.25


@pytest.mark.parametrize("name", ["fp8", "int4"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats(tmp_path: Path, check: Callable[..., None], name: str) -> None:
    """Matrices of attention, the indexer, experts, and shared experts."""
    quantize, config = FORMATS[name]
    path = write(tmp_path / "plain", **{**CASES["minimax_m3_vl"], **WIDE})
    path, exact = quantized(path, tmp_path, quantize, config)
    suffix = {"fp8": "weight_scale_inv", "int4": "qweight"}[name]
    stored, layer = load_file(path / WEIGHTS), "language_model.model.layers.2."
    for module in ("self_attn.index_q_proj", "block_sparse_moe.experts.3.w1"):
        assert f"{layer}{module}.{suffix}" in stored
    check(path, exact)


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.6), ("fp8", 0.2), ("eetq", 0.06)])
@pytest.mark.parametrize("case", ["minimax_m3", "minimax_m3_vl"])
def test_it_is_quantized_while_loading(
    tmp_path: Path, case: str, quantize: str, most: float
) -> None:
    """The logits are near those of the floats, but not equal."""
    path = write(tmp_path / "model", **{**CASES[case], **WIDE, "index_block_size": 16})
    assert 1e-3 < error_of_quantizing(path, quantize) < most


@pytest.mark.parametrize("case", ["minimax_m3", "minimax_m3_vl"])
def test_sequences_in_padded_steps(checkpoint: Checkpoints, case: str) -> None:
    """Decodes beside chunks of a longer prompt, one preempted, one forked: each has the tokens that
    it has alone. Free blocks hold NaN."""
    path, worker = checkpoint(case), LocalWorker()
    driver = driver_of([worker], worker.load(path, dtype="float64"))  # type: ignore[list-item]
    worker.runner.packer.pad = True
    for sequence in beside_a_longer_prompt(driver):
        alone = greedy(sequence.prompt, sequence.wanted)
        run(path, alone)
        assert alone.tokens == sequence.tokens
