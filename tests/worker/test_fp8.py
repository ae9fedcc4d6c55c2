"""fp8 checkpoints, written from the documented layouts."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from local import LocalWorker, Refused
from penstock.config import read_config
from penstock.faults import BadModel
from penstock.layers import Build, Linear
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import Fp8, Fp8Layout, Unquantized, read_methods
from penstock.quant.method import Weights
from penstock.weights import Checkpoint, load_weights
from penstock.weights import load as load_module
from penstock_kernels.packed_linear import PackedWeight
from quantized import (
    UP,
    Quantize,
    assert_equal_model,
    assert_equal_ranks,
    changed,
    drop,
    put,
    quantized,
)
from torch import Tensor
from transformers import AutoModelForCausalLM

HOST = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def in_blocks(rows: int, columns: int, **names: str) -> Quantize:
    """A float32 scale per block, the largest number of each block being 448; 0 = all of a side.

    Blocks at the right and lower edges are smaller. `names`: of the tensors, and of scales' dtype.
    """

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        outputs, inputs = matrix.shape
        height, width = rows or outputs, columns or inputs
        codes, exact = torch.empty_like(matrix).to(torch.float8_e4m3fn), matrix.double()
        scales = torch.empty(-(-outputs // height), -(-inputs // width))
        for i, j in torch.cartesian_prod(*map(torch.arange, scales.shape)).tolist():
            part = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
            scales[i, j] = matrix[part].abs().max() / 448
            if "dtype" in names:  # powers of two
                scales[i, j] = scales[i, j].log2().ceil().exp2()
            codes[part] = (matrix[part] / scales[i, j]).to(torch.float8_e4m3fn)
            exact[part] = codes[part].double() * scales[i, j].double()
        scale = scales.reshape(()) if not rows and not columns else scales
        scale = scale.to(getattr(torch, names.get("dtype", "float32")))
        found = {"weight": codes, names.get("scale", "weight_scale"): scale}
        if "activation" in names:
            found[names["activation"]] = torch.tensor(0.5)
        return found, exact

    return quantize


DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
FORMATS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    # Blocks of 128 hold the whole of these matrices' sides, and the parts and ranks cut them.
    "block-128": (
        in_blocks(128, 128, scale="weight_scale_inv"),
        {**DEEPSEEK, "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
    ),
    # Two ranks have 48 of 96 inputs: one block and a half.
    "block-32": (
        in_blocks(32, 32, scale="weight_scale_inv"),
        {**DEEPSEEK, "weight_block_size": [32, 32]},
    ),
    "block-32-e8m0": (
        in_blocks(32, 32, scale="weight_scale_inv", dtype="float8_e8m0fnu"),
        {**DEEPSEEK, "weight_block_size": [32, 32], "scale_fmt": "ue8m0"},
    ),
    "block-40-16": (
        in_blocks(40, 16, scale="weight_scale_inv"),
        {**DEEPSEEK, "weight_block_size": [40, 16], "modules_to_not_convert": []},
    ),
    "tensor": (
        in_blocks(0, 0),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]},
    ),
    "tensor-static": (
        in_blocks(0, 0, scale="weight_scale_inv", activation="activation_scale"),
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
    ),
    "autofp8-static": (
        in_blocks(0, 0, activation="input_scale"),
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    ),
    "channel": (in_blocks(1, 0), {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "fbgemm": (
        in_blocks(1, 0),
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": []},
    ),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["llama31", "phi3-longrope"])
def test_the_model_computes_what_its_weights_stand_for(
    checkpoint: Callable[[str], Path], case: str, name: str, tmp_path: Path
) -> None:
    """With parts apart, and fused and reordered: parts have scales of their own, or share them."""
    quantize, config = FORMATS[name]
    path, exact = quantized(checkpoint(case), tmp_path, quantize, config)
    assert_equal_model(path, exact)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["llama31", "llama-one-kv-head", "phi3-longrope"])
def test_two_ranks(checkpoint: Callable[[str], Path], case: str, name: str, tmp_path: Path) -> None:
    quantize, config = FORMATS[name]
    assert_equal_ranks(*quantized(checkpoint(case), tmp_path, quantize, config))


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_experts_of_minimax(
    checkpoint: Callable[[str], Path], check: Callable[..., None], tmp_path: Path
) -> None:
    """Published checkpoints are in fp8, and list these modules."""
    quantize, config = FORMATS["block-32"]
    kept = {"modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}
    check(*quantized(checkpoint("minimax-m2"), tmp_path, quantize, {**config, **kept}))


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_lightning_attention(
    checkpoint: Callable[[str], Path], check: Callable[..., None], tmp_path: Path
) -> None:
    """Its queries, keys and values are reordered; blocks of scales end within heads."""
    check(*quantized(checkpoint("minimax"), tmp_path, *FORMATS["block-32"]))


def test_modules_that_are_not_converted(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    config = {**DEEPSEEK, "modules_to_not_convert": ["mlp.down_proj", "model.layers.1"]}
    path, exact = quantized(
        checkpoint("llama31"), tmp_path, in_blocks(0, 0), config, r"down_proj|layers\.1\.|lm_head"
    )
    assert_equal_model(path, exact)


def test_transformers_reads_the_same_checkpoint(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its own dequantization, whose blocks must divide the matrices."""
    quantize, config = FORMATS["block-32"]
    path, _ = quantized(checkpoint("llama31"), tmp_path, quantize, config)
    theirs = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    assert theirs.model.layers[0].mlp.up_proj.weight.dtype != torch.float8_e4m3fn
    assert_equal_model(path, theirs.double().eval(), tolerance=0.2)  # it rounds to bfloat16


def test_scales_keep_their_precision() -> None:
    """A model in bfloat16 keeps the float32 scales of an fp8 checkpoint."""
    method = Fp8(Unquantized(torch.bfloat16, HOST), Fp8Layout(None, (32, 32)))
    weights = {name: stored.data for name, stored in method.allocate(64, 64).items()}
    weights["weight"].copy_(torch.randn(64, 64))
    weights["scale"].copy_(torch.rand(64, 2) + 0.5)
    packed = method._packed(method.read(weights))
    assert isinstance(packed, PackedWeight) and packed.scales.dtype == torch.float32
    exact = weights["weight"].double() * weights["scale"].double().repeat_interleave(32, 1)
    assert torch.equal(packed.matrix(torch.float64), exact)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("block-32", drop("weight_scale_inv"), f"lacks tensors: {UP}.weight_scale_inv"),
        ("tensor", drop("weight_scale"), f"lacks tensors: {UP}.weight_scale"),
        ("autofp8-static", drop("input_scale"), f"lacks tensors: {UP}.input_scale"),
        (
            "block-32",
            put("weight_scale_inv", lambda t: t[:, :1].contiguous()),
            f"{UP}.weight_scale_inv has shape [3, 1], but config.json makes it [3, 2]",
        ),
        (
            "tensor",
            put("weight_scale", lambda t: t.repeat(3)),
            f"{UP}.weight_scale has shape [3], but config.json makes it [1, 1] or [96, 1]",
        ),
        (
            "block-32",
            put("weight", lambda t: t.float().to(torch.float8_e5m2)),
            f"{UP}.weight is float8_e5m2, but its layer takes float8_e4m3fn",
        ),
        (
            "block-32",
            put("weight", lambda t: t.float()),
            f"{UP}.weight is float32, but its layer takes float8_e4m3fn",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(
    checkpoint: Callable[[str], Path], name: str, change: Any, text: str, tmp_path: Path
) -> None:
    quantize, config = FORMATS[name]
    path, _ = quantized(checkpoint("llama31"), tmp_path, quantize, config)
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(changed(path, change))


def test_a_quantized_head_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """transformers and vLLM keep the heads of these checkpoints, listed or not."""
    path, _ = quantized(checkpoint("llama31"), tmp_path, *FORMATS["tensor"], "^$")
    with pytest.raises(Refused, match=r"has unknown tensors: lm_head\.weight_scale"):
        LocalWorker().load(path)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"weight_block_size": [128]}, "weight_block_size [128] is not supported"),
        ({"weight_block_size": [128, 100]}, "inputs a multiple of 16"),
        ({"weight_block_size": 128}, "weight_block_size 128 is not supported"),
        ({"fmt": "e5m2"}, "fmt 'e5m2' is not supported; supported: 'e4m3'"),
        ({"activation_scheme": "none"}, "activation_scheme 'none' is not supported"),
        ({"quantize_activations": True}, "quantize_activations True is not supported"),
        ({"modules_to_not_convert": "lm_head"}, "must be a list of modules"),
    ],
)
def test_settings_are_refused_by_name(config: dict[str, Any], text: str) -> None:
    raw = {"quantization_config": {"quant_method": "fp8", **config}}
    with pytest.raises(BadModel, match=re.escape(text)):
        read_methods(raw, torch.float32, HOST)


def test_a_cpu_warns_that_it_dequantizes(caplog: pytest.LogCaptureFixture) -> None:
    read_methods({}, torch.float32, HOST)
    assert not caplog.records
    read_methods({"quantization_config": {"quant_method": "fp8"}}, torch.float32, HOST)
    read_methods({}, torch.bfloat16, HOST, "fp8")
    assert [record.getMessage()[-7:] for record in caplog.records] == ["float32", "float16"]


def test_a_share_that_no_kernel_can_read_is_refused() -> None:
    method = Fp8(Unquantized(torch.bfloat16, HOST), Fp8Layout(None, (128, 128)))
    with pytest.raises(BadModel, match=r"blocks of 128 inputs .* has 72 inputs"):
        method.allocate(64, 72)


def test_loaded_weights_are_freed_layer_by_layer(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a load takes twice the memory of the weights."""
    path, _ = quantized(checkpoint("llama2"), tmp_path, *FORMATS["channel"])
    raw = read_config(path)
    cls: Any = family(raw)
    methods = read_methods(raw, torch.float32, HOST)
    model = cls(cls.read_config(raw), Build(torch.float32, HOST, Group(), methods, 8))
    layers = [layer for _, layer in model.walk() if isinstance(layer, Linear)]
    loaded = [weakref.ref(layer.weights["weight"]) for layer in layers]
    alive, finish = [], Fp8.finish

    def count(self: Fp8, weights: Weights) -> Weights:
        alive.append(sum(one() is not None for one in loaded))
        return finish(self, weights)

    monkeypatch.setattr(Fp8, "finish", count)
    monkeypatch.setattr(load_module, "READERS", 1)
    with Checkpoint(path) as files:
        load_weights(files, model, model.ignored, lambda *_: None)
    # A thread drops its last target a moment after it is filled.
    late = [count - left for count, left in zip(alive, range(len(layers), 0, -1), strict=True)]
    assert set(late) <= {0, 1}
