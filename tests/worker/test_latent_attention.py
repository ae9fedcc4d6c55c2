"""Multi-head latent attention: its cache, weight formats, what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, checkpoint_maker, generate, prompt, reference, write
from driver import Driver, greedy
from local import LocalWorker, Refused
from penstock.cache import KvGeometry, KvShape, kv_format
from penstock.config import read_config
from penstock.faults import BadModel
from penstock.models import family, read_specification
from penstock.parallel import Group
from penstock.quant import read_methods
from quantized import assert_equal_model, assert_equal_ranks, error_of_quantizing, quantized
from ranks import Threads, prefilled
from safetensors.torch import load_file, save_file
from test_experts import FORMATS
from transformers import AutoConfig

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


# Sides are multiples of 128, except the row of latents, as DeepSeek's.
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
SIZES |= {"q_lora_rank": 128, "kv_lora_rank": 128, "qk_rope_head_dim": 32, "vocab_size": 512}
SIZES |= {"qk_nope_head_dim": 32, "v_head_dim": 64, "moe_intermediate_size": 256}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of these sizes."""
    directory = tmp_path_factory.mktemp("formats")
    return write(directory / "plain", **{**CASES["deepseek-v3"], **SIZES})


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another, with an indexer."""
    fields = {**CASES["deepseek-v32"], **SIZES, "index_head_dim": 128}
    return write(tmp_path_factory.mktemp("formats") / "indexed", **fields)


@pytest.mark.parametrize("name", ["fp8", "int4"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats(plain: Path, tmp_path: Path, check: Callable[..., None], name: str) -> None:
    """The projections of latents are dequantized; all else is as in other models."""
    quantize, config = FORMATS[name]
    check(*quantized(plain, tmp_path, quantize, config))


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats_of_indexers(
    indexed: Path, tmp_path: Path, check: Callable[..., None]
) -> None:
    """Matrices have blocks' scales; the heads' weights are floats, as in published files."""
    quantize, config = FORMATS["fp8"]
    path, exact = quantized(indexed, tmp_path, quantize, config)
    names = load_file(path / WEIGHTS)
    assert {name for name in names if "indexer" in name and "layers.0." in name} == {
        f"model.layers.0.self_attn.indexer.{name}"
        for name in (
            *("wq_b.weight", "wq_b.weight_scale_inv", "wk.weight", "wk.weight_scale_inv"),
            *("k_norm.weight", "k_norm.bias", "weights_proj.weight"),
        )
    }
    check(path, exact)


@pytest.mark.parametrize("name", ["fp8", "int4"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats_beside_linear_attention(
    tmp_path: Path, check: Callable[..., None], name: str
) -> None:
    """Matrices of strengths, decays and gates are floats in the file."""
    quantize, config = FORMATS[name]
    linear = {"linear_head_dim": 32, "linear_num_heads": 8, "mlp_layer_types": ["dense", "sparse"]}
    kinds = {"layer_types": ["linear_attention", "full_attention"], "q_lora_rank": None}
    path = write(tmp_path / "plain", **{**CASES["kimi_linear"], **SIZES, **linear, **kinds})
    kept = r"lm_head|\.([fg]_[ab]|b)_proj"
    check(*quantized(path, tmp_path, quantize, config, kept))


@pytest.mark.parametrize("name", ["fp8", "int4"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats_of_gates_and_streams(
    tmp_path: Path, check: Callable[..., None], name: str
) -> None:
    """The gate is a part of the first matrix; what weighs the streams is floats."""
    quantize, config = FORMATS[name]
    dense = {"mlp_layer_types": ["dense"] * 2, "indexer_types": ["full", "shared"]}
    fields = {**CASES["hy-v4"], **SIZES, **dense, "index_head_dim": 128, "initializer_range": 0.1}
    path, exact = quantized(write(tmp_path / "plain", **fields), tmp_path, quantize, config)
    stored = load_file(path / WEIGHTS)
    assert stored["model.layers.0.hc_pre.hc_attn_layer.hc_fn"].dtype == torch.float32
    suffix = {"fp8": "weight_scale_inv", "int4": "qweight"}[name]
    assert f"model.layers.0.self_attn.linear_gate.{suffix}" in stored
    check(path, exact)


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.6), ("fp8", 0.2), ("eetq", 0.06)])
def test_hunyuan_4_is_quantized_while_loading(tmp_path: Path, quantize: str, most: float) -> None:
    """The logits are near those of the floats, but not equal. All tokens and experts are chosen, so
    that rounding changes no choice."""
    every = {"index_topk": 128, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8}
    kinds = {"mlp_layer_types": ["dense", "sparse"], "indexer_types": ["full", "shared"]}
    fields = {**CASES["hy-v4"], **SIZES, **every, **kinds, "index_head_dim": 128}
    path = write(tmp_path / "model", **{**fields, "initializer_range": 0.08})
    assert 1e-3 < error_of_quantizing(path, quantize) < most


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_four_ranks_of_hunyuan_4(checkpoint: Callable[[str], Path], expert_parallel: bool) -> None:
    """Each has all streams, a head with its sink, and a part of the gate and of experts."""
    path = checkpoint("hy-v4")
    raw = read_config(path)
    cls: Any = family(raw)
    methods = read_methods(raw, torch.float64, torch.device("cpu"))

    @torch.inference_mode()
    def work(group: Group) -> torch.Tensor:
        return prefilled(path, cls, group, methods, expert_parallel=expert_parallel)

    (alone,) = Threads(1).run(work)
    for found in Threads(4).run(work):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-9)


def test_experts_of_hunyuan_4_by_themselves(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As quantized checkpoints have them, with gates of feed-forward layers by their plain name;
    layers that predict further tokens are not loaded."""
    tensors = {"model.mtp_layers.0.norm.weight": torch.ones(64)}
    for name, tensor in load_file(checkpoint("hy-v4") / WEIGHTS).items():
        module, _, matrix = name.rpartition(".")
        if not module.endswith(".experts"):
            plain = re.sub(r"(mlp|shared_experts)\.linear_gate", r"\1.gate_proj", name)
            tensors[plain] = tensor
            continue
        parts = [part + "_proj" for part in ("gate", "up")] if "gate" in matrix else [matrix]
        for number, expert in enumerate(tensor):
            for part, rows in zip(parts, expert.chunk(len(parts)), strict=True):
                tensors[f"{module}.{number}.{part}.weight"] = rows.clone()
    save_file(tensors, tmp_path / WEIGHTS, metadata={"format": "pt"})
    shutil.copy(checkpoint("hy-v4") / "config.json", tmp_path)
    found = []
    for path in (checkpoint("hy-v4"), tmp_path):
        worker, sequence = LocalWorker(), greedy(prompt(40), 16)
        driver = Driver([worker], worker.load(path, dtype="float64"))
        driver.enter(sequence)
        driver.finish([sequence])
        driver.stream.close()
        found.append(sequence.tokens)
    assert found[0] == found[1]


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_rank_has_one_row_per_token(checkpoint: Callable[[str], Path], ranks: int) -> None:
    raw = json.loads((checkpoint("deepseek-v2") / "config.json").read_text())
    layers = read_specification(family(raw), raw).layers
    shapes = [KvShape.of(layer.attention, ranks) for layer in layers]
    assert shapes == [KvShape(0, 1, 24 + 8, planes=1)] * 3
    geometry = KvGeometry.of(shapes, 16, kv_format("auto", torch.bfloat16))
    (group,) = geometry.groups
    assert geometry.block_bytes(group) == 3 * 16 * 32 * 2
    cache = geometry.allocate([5], torch.device("cpu")).caches[1]
    assert cache.data.shape == (5, 1, 1, 16, 32)
    assert 3 * cache.data[0].nbytes == geometry.block_bytes(group)


def test_an_indexers_keys_are_behind_the_latents(checkpoint: Callable[[str], Path]) -> None:
    """Also in layers that have none: a choice lists rows of all layers' caches."""
    raw = json.loads((checkpoint("glm-moe-dsa") / "config.json").read_text())
    shapes = [KvShape.of(layer.attention, 2) for layer in _specification(raw).layers]
    assert shapes == [KvShape(0, 1, 24 + 8 + 20, planes=1)] * 4


def test_short_sequences_attend_to_all_tokens(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """A worker whose sequences have at most index_topk tokens computes no scores: keys of an
    indexer may be NaN."""
    path = tmp_path / "short"
    shutil.copytree(checkpoint("deepseek-v32"), path)
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**raw, "index_topk": 96}))
    ids, worker, sequence = prompt(90), LocalWorker(), greedy(prompt(90), 4)
    tensors = load_file(path / WEIGHTS)
    expected = generate(reference(path, torch.float64), ids, 4)
    for name in [name for name in tensors if ".indexer." in name]:
        tensors[name] = torch.full_like(tensors[name], torch.nan)
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    driver = Driver([worker], worker.load(path, dtype="float64", max_sequence_tokens=96))
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    assert sequence.tokens == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"index_topk_pattern": "FSFS"}, "FSFS"),
        ({"index_topk_pattern": ["full", "full", "shared", "shared"]}, "FFSS"),
        ({"index_topk_freq": 3}, "FFSS"),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 3}, "FFFS"),
        ({"index_topk_freq": 1, "index_topk_pattern": None}, "FFFF"),
        ({"indexer_types": ["full", "full", "full", "shared"], "index_topk_freq": 2}, "FFFS"),
    ],
)
def test_layers_that_share_an_indexer(
    checkpoint: Callable[[str], Path], fields: dict[str, Any], expected: str
) -> None:
    """As transformers reads the same fields."""
    raw = json.loads((checkpoint("glm-moe-dsa") / "config.json").read_text())
    del raw["indexer_types"]
    theirs = AutoConfig.for_model(**raw | fields).indexer_types
    assert "".join(kind[0].upper() for kind in theirs) == expected
    found = []
    for layer in _specification({**raw, **fields}).layers:
        assert layer.attention.latent is not None and layer.attention.latent.indexer is not None
        found.append("S" if layer.attention.latent.indexer.shared else "F")
    assert "".join(found) == expected


def test_indexers_that_no_layer_runs_are_not_loaded(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "more"
    shutil.copytree(checkpoint("glm-moe-dsa"), path)
    tensors = load_file(path / WEIGHTS)
    assert "model.layers.1.self_attn.indexer.wk.weight" not in tensors
    tensors["model.layers.1.self_attn.indexer.wk.weight"] = torch.zeros(4)
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    assert LocalWorker().load(path).vocab_size == 501


def test_ax_k1_without_a_correction_bias(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As its published files are, which also have a norm in dense layers that nothing runs."""
    path = tmp_path / "published"
    shutil.copytree(checkpoint("axk1"), path)
    tensors = load_file(path / WEIGHTS)
    kept = {name: each for name, each in tensors.items() if "e_score_correction" not in name}
    assert len(tensors) - len(kept) == 2
    kept["model.layers.0.post_mlp_layernorm.weight"] = torch.ones(64)
    save_file(kept, path / WEIGHTS, metadata={"format": "pt"})
    worker, sequence = LocalWorker(), greedy(prompt(90), 8)
    driver = Driver([worker], worker.load(path, dtype="float64"))
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    assert sequence.tokens == generate(reference(path, torch.float64), prompt(90), 8)


def _specification(raw: dict[str, Any]) -> Any:
    return read_specification(family(raw), raw)


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "int8", "int4"])
def test_other_kv_dtypes_are_refused(checkpoint: Callable[[str], Path], kv_dtype: str) -> None:
    text = f"kv_dtype {kv_dtype} is not supported for multi-head latent attention"
    with pytest.raises(Refused, match=text):
        LocalWorker().load(checkpoint("deepseek-v2-lite"), kv_dtype=kv_dtype)


def test_ranks_must_divide_the_heads(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(Refused, match="num_attention_heads is 4, which 3 ranks"):
        LocalWorker().load(checkpoint("deepseek-v2-lite"), world_size=3)


def test_layers_that_predict_more_tokens_are_not_loaded(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "more"
    shutil.copytree(checkpoint("deepseek-v3"), path)
    extra = {"model.layers.3.eh_proj.weight": torch.zeros(4)}
    tensors = {**load_file(path / WEIGHTS), **extra}
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    assert LocalWorker().load(path).vocab_size == 501


@pytest.mark.parametrize(
    ("case", "fields", "text"),
    [
        ("deepseek-v2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
        ("deepseek-v2", {"norm_topk_prob": True}, "norm_topk_prob True is not supported"),
        ("deepseek-v2", {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported"),
        ("deepseek-v2", {"attention_bias": True}, "attention_bias True is not supported"),
        ("deepseek-v2", {"kv_lora_rank": 0}, "kv_lora_rank must be a whole number"),
        (
            "deepseek-v2",
            {"qk_rope_head_dim": 7, "head_dim": 7, "qk_head_dim": 19},
            "qk_rope_head_dim must be even",
        ),
        ("deepseek-v2", {"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported"),
        ("deepseek-v3", {"topk_method": "greedy"}, "topk_method 'greedy' is not supported"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        ("deepseek-v3", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers above 1"),
        ("deepseek-v3", {"index_topk": 2048}, "index_topk 2048 is not supported"),
        ("deepseek-v32", {"q_lora_rank": None}, "an indexer without q_lora_rank"),
        ("deepseek-v32", {"index_head_dim": 4}, "index_head_dim is 4, less than qk_rope_head_dim"),
        ("deepseek-v32", {"indexer_rope_interleave": True}, "indexer_rope_interleave True"),
        ("deepseek-v32", {"index_topk_freq": 4}, "index_topk_freq 4 is not supported"),
        ("deepseek-v32", {"layer_types": ["full_attention"] * 3}, "layer_types ['full_attention'"),
        ("axk2", {"n_group": 4, "topk_group": 2}, "n_group 4 is not supported"),
        ("axk2", {"gated_norm_rank": 0}, "gated_norm_rank must be a whole number"),
        ("glm-moe-dsa", {"indexer_rope_interleave": False}, "indexer_rope_interleave False"),
        ("glm-moe-dsa", {"rope_interleave": False}, "rope_interleave False"),
        ("glm-moe-dsa", {"indexer_types": ["shared", "full"] * 2}, "and full for the first"),
        ("glm-moe-dsa", {"indexer_types": ["full", 3, "full", "full"]}, "indexer_types must have"),
        ("glm-moe-dsa", {"index_kpool": 4}, "index_kpool 4 is not supported"),
        (
            "glm4-moe-lite",
            {"mlp_layer_types": ["sparse", "dense", "sparse"]},
            "mlp_layer_types must",
        ),
        ("hy-v4", {"swiglu_limit": 7.0}, "swiglu_limit 7.0 is not supported, only 10.0 is"),
        ("hy-v4", {"rope_interleave": True}, "rope_interleave True is not supported"),
        ("hy-v4", {"attention_bias": True}, "attention_bias True is not supported"),
        ("hy-v4", {"hc_mult": 0}, "hc_mult must be a whole number"),
        ("hy-v4", {"hc_eps": -1e-3}, "hc_eps must be at least 0"),
        ("hy-v4", {"hc_magnitude": 0}, "hc_magnitude must be a number above 0"),
        ("hy-v4", {"hc_sinkhorn_iters": 20}, "hc_sinkhorn_iters 20 is not supported"),
        ("hy-v4", {"index_topk_freq": 4}, "index_topk_freq 4 is not supported"),
        ("hy-v4", {"indexer_types": ["shared"] * 4}, "and full for the first"),
        ("hy-v4", {"layer_types": ["full_attention"] * 4}, "layer_types ['full_attention'"),
        ("longcat-flash", {"router_bias": True}, "router_bias True is not supported"),
        ("longcat-flash", {"zero_expert_type": "zero"}, "zero_expert_type 'zero'"),
        ("longcat-flash", {"mla_scale_q_lora": False}, "mla_scale_q_lora False"),
        ("longcat-flash", {"num_hidden_layers": 2}, "num_hidden_layers 2 is not supported"),
        ("mistral4", {"head_dim": 16}, "head_dim 16 is not supported, only 20 is"),
        (
            "mistral4",
            {"rope_parameters": {"rope_type": "yarn", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor 0.5 is not supported",
        ),
        ("mistral4", {"attention_bias": True}, "attention_bias True is not supported"),
        ("deepseek-v3", {"n_group": 3}, "8 experts do not form 3 equal groups"),
        (
            "deepseek-v3",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type 'linear' is not supported for latent attention",
        ),
    ],
)
def test_fields_that_are_not_supported(
    checkpoint: Callable[[str], Path], case: str, fields: dict[str, Any], text: str
) -> None:
    raw = json.loads((checkpoint(case) / "config.json").read_text())
    with pytest.raises(BadModel, match=re.escape(text)):
        read_specification(family(raw), {**raw, **fields})


def test_fields_of_published_checkpoints_are_read() -> None:
    """Of DeepSeek-V3, as its config.json spells them."""
    raw = json.loads((Path(__file__).parent / "deepseek_v3.json").read_text())
    spec = read_specification(family(raw), raw)
    attention = spec.layers[0].attention
    assert attention.latent is not None and attention.rope is not None
    assert attention.scale == pytest.approx(0.1352337788608801)  # 192^-0.5 (0.1 ln 40 + 1)^2
    assert attention.rope.interleaved
    assert [layer.mlp == spec.layers[0].mlp for layer in spec.layers].index(False) == 3
