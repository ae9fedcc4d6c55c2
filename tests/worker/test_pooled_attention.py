"""Sparse attention to pools of tokens, between streams that are mixed: GLM-5-next."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, checkpoint_maker, prompt, reference, write
from driver import Driver, greedy
from local import LocalWorker, Refused
from penstock.config import KimiDeltaSpec
from penstock.faults import BadModel
from penstock.layers.attention import Chunks, Decodes, StepContext
from penstock.layers.step_rows import step_tokens
from penstock.models import family, read_specification
from quantized import assert_equal_model, assert_equal_ranks, error_of_quantizing, quantized
from safetensors.torch import load_file, save_file
from test_experts import FORMATS

WEIGHTS = "model.safetensors"
KEPT = r"lm_head|\.([fg]_[ab]|b)_proj"  # also the matrices of strengths, decays and gates
# All inputs of a matrix, on each of two ranks, are whole groups of 128.
SIZES = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "vocab_size": 512}
SIZES |= {"q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 32, "v_head_dim": 64}
SIZES |= {"moe_intermediate_size": 256, "index_head_dim": 128, "linear_head_dim": 32}
KINDS = {"layer_types": ["linear_attention", "indexed_attention"], "indexer_types": ["full"] * 2}
SMALL = {**CASES["glm5_next"], **SIZES, **KINDS, "mlp_layer_types": ["dense", "sparse"]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("glm5_next")


def changed(path: Path, directory: Path, *dropped: str, **fields: Any) -> Path:
    """The checkpoint with other fields of the text, or without some."""
    shutil.copy(path / WEIGHTS, directory)
    raw = json.loads((path / "config.json").read_text())
    text = {**raw["text_config"], **fields}
    kept = {name: value for name, value in text.items() if name not in dropped}
    (directory / "config.json").write_text(json.dumps({**raw, "text_config": kept}))
    return directory


def logits_of(path: Path) -> torch.Tensor:
    """The logits after a prompt."""
    worker, sequence = LocalWorker(), greedy(prompt(70), 1)
    driver = Driver([worker], worker.load(path, dtype="float64"))
    logits = worker.record_logits()
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    return torch.cat(logits)[0]


@pytest.mark.parametrize("name", ["fp8", "int4"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats(tmp_path: Path, check: Callable[..., None], name: str) -> None:
    """What weighs streams and tokens of a pool is floats."""
    quantize, config = FORMATS[name]
    plain = write(tmp_path / "plain", **{**SMALL, "initializer_range": 0.1})
    path, exact = quantized(plain, tmp_path, quantize, config, KEPT)
    stored = load_file(path / WEIGHTS)
    layer = "model.language_model.layers.1."
    assert stored[layer + "hc_ffn_fn"].dtype == torch.float32
    suffix = {"fp8": "weight_scale_inv", "int4": "qweight"}[name]
    for module in ("self_attn.indexer.wq_b", "mlp.experts.3.up_proj"):
        assert f"{layer}{module}.{suffix}" in stored
    check(path, exact)


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.7), ("fp8", 0.2), ("eetq", 0.06)])
def test_quantized_while_loading(tmp_path: Path, quantize: str, most: float) -> None:
    """The logits are near those of the floats, but not equal. All tokens and experts are chosen, so
    that rounding changes no choice."""
    every = {"index_topk": 128, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8}
    path = write(tmp_path / "model", **{**SMALL, **every, "initializer_range": 0.08})
    assert 1e-3 < error_of_quantizing(path, quantize) < most


@pytest.mark.parametrize(
    ("dropped", "fields"),
    [
        (["linear_lower_bound"], {}),
        (["hc_eps", "rms_norm_eps", "indexer_types"], {}),
        (["routed_scaling_factor", "norm_topk_prob", "swiglu_limit"], {}),
        ([], {"linear_lower_bound": None}),
        ([], {"indexer_types": None, "index_topk_pattern": "FFSFFF"}),
        ([], {"layer_types": [*(["linear_attention", "full_attention"] * 3)]}),
        ([], {"index_topk": 4}),
        (["mlp_layer_types", "layer_types", "indexer_types"], {"num_hidden_layers": 4}),
        (
            ["linear_head_dim", "linear_num_heads", "linear_lower_bound"],
            {"linear_attn_config": {"head_dim": 12, "num_heads": 8, "short_conv_kernel_size": 3}},
        ),
        ([], {"linear_attn_config": {"gate_lower_bound": None}}),
        ([], {"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False}}),
    ],
)
def test_defaults_and_other_names(
    tmp_path: Path, dropped: list[str], fields: dict[str, Any]
) -> None:
    """As transformers reads the same file."""
    lists = [name for name in dropped if name.endswith("_types")]
    made: dict[str, Any] = {**dict.fromkeys(lists), "initializer_range": 0.2}
    if "layer_types" in fields:
        made["indexer_types"] = ["full"] * 6
    plain = write(tmp_path / "plain", **{**CASES["glm5_next"], **made, **fields})
    path = changed(plain, tmp_path, *dropped, **fields)
    with torch.inference_mode():
        theirs = reference(path, torch.float64)(torch.tensor([prompt(70)])).logits[0, -1]
    torch.testing.assert_close(logits_of(path), theirs.double(), rtol=0, atol=2e-4)


def test_files_without_images(path: Path, tmp_path: Path) -> None:
    """Fields of the text beside the others, names without a prefix, and a layer that predicts
    further tokens."""
    raw = json.loads((path / "config.json").read_text())
    text = {**raw.pop("text_config"), "num_nextn_predict_layers": 1}
    del raw["vision_config"]
    (tmp_path / "config.json").write_text(json.dumps({**text, **raw}))
    tensors = {"model.layers.6.eh_proj.weight": torch.zeros(4)}
    for name, tensor in load_file(path / WEIGHTS).items():
        if ".visual." not in name:
            tensors[name.replace(".language_model.", ".")] = tensor
    save_file(tensors, tmp_path / WEIGHTS, metadata={"format": "pt"})
    torch.testing.assert_close(logits_of(tmp_path), logits_of(path), rtol=0, atol=0)


def test_blocks_must_not_cut_pools(path: Path) -> None:
    with pytest.raises(Refused, match="block_tokens is 6, not a multiple of index_kpool, 4"):
        LocalWorker().load(path, block_tokens=6)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"swiglu_limit": 7.0}, "swiglu_limit 7.0 is not supported, only 10.0 is"),
        ({"qk_rope_head_dim": 8}, "qk_rope_head_dim 8 is not supported, only 0 is"),
        ({"index_kpool": 3}, "index_topk must be a multiple of index_kpool, 3, found 8"),
        ({"index_kpool": 0}, "index_kpool must be a whole number"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail False"),
        ({"q_lora_rank": None, "index_topk": 8.5}, "index_topk must be a whole number"),
        ({"linear_lower_bound": 1.0}, "linear_lower_bound must be below 0, found 1.0"),
        ({"hc_sinkhorn_iters": 0}, "hc_sinkhorn_iters must be a whole number"),
        ({"hc_eps": -1e-3}, "hc_eps must be at least 0"),
        ({"hc_magnitude": 3.0}, "hc_magnitude 3.0 is not supported"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers above 1"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ({"layer_types": ["linear_attention"] * 6}, "for at least one layer"),
        ({"layer_types": ["sliding_attention"] * 6}, "layer_types must hold"),
        ({"indexer_types": ["full", "shared"] * 3}, "for the first layer that is not linear"),
        ({"indexer_types": ["full"]}, "indexer_types must have full or shared for each of 6"),
    ],
)
def test_fields_that_are_refused(path: Path, fields: dict[str, Any], text: str) -> None:
    raw = json.loads((path / "config.json").read_text())
    raw["text_config"] |= fields
    with pytest.raises(BadModel, match=re.escape(text)):
        read_specification(family(raw), raw)


def test_what_queries_of_a_step_see() -> None:
    """Decodes, padding among them, then chunks, then padding."""
    decodes = Decodes(3, ints(5, 7, 0), ints(41, 9, 0))
    chunks = Chunks(ints(2, 4, 3), ints(2, 5, 5, 7), ints(13, 8, 2), 4)
    positions = ints(40, 8, 10, 11, 12, 0, 1, 0)
    context = StepContext(positions, [], [], decodes, chunks)
    slots, seen = step_tokens(context)
    assert seen.tolist() == [41, 9, 11, 12, 13, 1, 2, 0]
    assert slots[:7].tolist() == [5, 7, 2, 2, 2, 3, 3]
    alone = StepContext(positions[:3], [], [], decodes, None)
    assert step_tokens(alone).seen.tolist() == [41, 9, 0]


def ints(*values: int) -> torch.Tensor:
    """A tensor as steps have them."""
    return torch.tensor(values, dtype=torch.int32)


def test_the_published_kinds_of_layers() -> None:
    """Where config.json has no lists."""
    text = {"hidden_size": 4096, "intermediate_size": 12288, "n_routed_experts": 288}
    text |= {"vocab_size": 154880, "num_key_value_heads": 64}
    raw = {"architectures": ["Glm5NextForConditionalGeneration"], "text_config": text}
    layers = read_specification(family(raw), raw).layers
    linear = [isinstance(layer.attention, KimiDeltaSpec) for layer in layers]
    assert linear == [i % 4 != 3 for i in range(45)]
