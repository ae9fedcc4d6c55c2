"""mxfp8 checkpoints of the Model Optimizer, of vLLM's and SGLang's tools and of transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from local import LocalWorker, Refused
from penstock.faults import BadModel, BadSetting
from penstock.quant import Methods, MxFp8, Unquantized, read_methods, with_stored_experts
from quantized import (
    UP,
    Quantize,
    assert_equal_model,
    assert_equal_ranks,
    changed,
    drop,
    put,
    quantized,
    wide,
)
from safetensors.torch import load_file, save_file
from test_mx import MODELOPT
from torch import Tensor
from transformers import AutoModelForCausalLM

HOST = torch.device("cpu")
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def mxfp8(name: str = "weight_scale", dtype: torch.dtype = torch.uint8) -> Quantize:
    """Codes e4m3 [outputs, inputs]; exponents + 127 [outputs, inputs / 32], as bytes or e8m0."""

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        groups = matrix.double().view(len(matrix), -1, 32)
        exponents = (groups.abs().amax(-1) / 448).log2().ceil()
        scales = exponents.exp2()[..., None]
        codes = (groups / scales).to(torch.float8_e4m3fn)
        stored = (exponents + 127).to(torch.uint8).view(dtype)
        exact = (codes.double() * scales).view(matrix.shape)
        return {"weight": codes.view(matrix.shape), name: stored}, exact

    return quantize


FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [1, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp8",
    "modules_to_not_convert": ["lm_head"],
}
FORMATS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "modelopt": (mxfp8(), {**MODELOPT, "quant_algo": "MXFP8", "group_size": 32}),
    "modelopt-inside": (
        mxfp8(),
        {
            "quant_method": "modelopt",
            "quantization": {"quant_algo": "MXFP8", "exclude_modules": ["lm_head"]},
        },
    ),
    "mxfp8": (
        mxfp8("weight_scale_inv"),
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": ["lm_head"]},
    ),
    "fp8": (mxfp8("weight_scale_inv", torch.float8_e8m0fnu), FP8),
    "fp8-bytes": (mxfp8("weight_scale_inv"), FP8),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["llama31", "phi3-longrope"])
def test_the_model_computes_what_its_weights_stand_for(
    checkpoint: Callable[[str], Path], case: str, name: str, tmp_path: Path
) -> None:
    """With parts apart, and fused and reordered."""
    assert_equal_model(*quantized(checkpoint(case), tmp_path, *FORMATS[name]))


@pytest.mark.parametrize("name", ["modelopt", "fp8"])
@pytest.mark.parametrize("case", ["llama31", "llama-one-kv-head", "phi3-longrope"])
def test_two_ranks(case: str, name: str, tmp_path: Path) -> None:
    assert_equal_ranks(*quantized(wide(case, tmp_path), tmp_path, *FORMATS[name]))


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_experts_of_minimax(check: Callable[..., None], tmp_path: Path) -> None:
    """Each expert has tensors of its own, with the names of its family."""
    quantize, config = FORMATS["mxfp8"]
    config = {**config, "ignored_layers": ["gate", "e_score_correction_bias", "lm_head"]}
    check(*quantized(wide("minimax-m2", tmp_path), tmp_path, quantize, config))


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_experts_of_hunyuan(check: Callable[..., None], tmp_path: Path) -> None:
    """A tensor holds a matrix of all experts, gates before ups, and another one the scales."""
    path = wide("hy-v4", tmp_path, moe_intermediate_size=64)
    quantize, tensors = mxfp8(), load_file(path / WEIGHTS)
    exact = {name: one.double() for name, one in tensors.items()}
    for name in [name for name in tensors if re.search(r"\.experts\.\w+_proj$", name)]:
        made = [quantize(matrix) for matrix in tensors[name]]
        tensors[name] = torch.stack([parts["weight"] for parts, _ in made])
        tensors[f"{name}_scale"] = torch.stack([parts["weight_scale"] for parts, _ in made])
        exact[name] = torch.stack([one for _, one in made])
    kept = ["lm_head", "*self_attn*", "*shared_experts*", "model.layers.1.mlp"]
    settings = {"quant_algo": "MXFP8", "exclude_modules": kept}
    config = {"quantization_config": {"quant_method": "modelopt", "quantization": settings}}
    raw = json.loads((path / "config.json").read_text())
    for folder, made, fields in (
        ("stored", tensors, config),
        ("exact", exact, {"dtype": "float64"}),
    ):
        (tmp_path / folder).mkdir()
        save_file(made, tmp_path / folder / WEIGHTS, {"format": "pt"})
        (tmp_path / folder / "config.json").write_text(json.dumps({**raw, **fields}))
    check(tmp_path / "stored", tmp_path / "exact")


def test_settings_in_a_file_of_their_own(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path, exact = quantized(checkpoint("llama31"), tmp_path, *FORMATS["modelopt"])
    raw = json.loads((path / "config.json").read_text())
    del raw["quantization_config"]
    (path / "config.json").write_text(json.dumps(raw))
    settings = {"quant_algo": "MXFP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    file = {"producer": {"name": "modelopt"}, "quantization": settings}
    (path / "hf_quant_config.json").write_text(json.dumps(file))
    assert_equal_model(path, exact)


@pytest.mark.parametrize("name", ["fp8", "fp8-bytes", "mxfp8"])
def test_transformers_reads_the_same_numbers(
    checkpoint: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    """It dequantizes the matrices, as there is no GPU."""
    path, exact = quantized(checkpoint("llama31"), tmp_path, *FORMATS[name])
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    expected = load_file(exact / WEIGHTS)
    for matrix in (UP, "model.layers.2.self_attn.o_proj", "lm_head"):
        found = theirs.get_parameter(f"{matrix}.weight").double()
        assert torch.equal(found, expected[f"{matrix}.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_code_and_scale_is_exact(dtype: torch.dtype) -> None:
    """e8m0 from 2^-117 on: the smallest codes times smaller scales are less than any number."""
    method = MxFp8(Unquantized(dtype, HOST))
    method.on_cpu = False
    bytes_ = torch.arange(256, dtype=torch.uint8)
    codes = bytes_[bytes_ & 0x7F != 0x7F][:224].repeat(234, 1)
    exponents = torch.arange(10, 244, dtype=torch.uint8)[:, None].repeat(1, 7)
    weight = codes.view(torch.float8_e4m3fn)
    finished = method.finish({"weight": weight, "weight_scale": exponents})
    exact = weight.double() * (exponents[:, :1].double() - 127).exp2()
    assert torch.equal(method.dequantize(finished).double(), exact)


def test_scales_keep_their_precision() -> None:
    """The range of float16 is too small for powers of two."""
    assert MxFp8(Unquantized(torch.float16, HOST)).scale_dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (drop("weight_scale"), f"lacks tensors: {UP}.weight_scale"),
        (
            put("weight_scale", lambda t: t[:, :1].clone()),
            f"{UP}.weight_scale has shape [96, 1], but config.json makes it [96, 2]",
        ),
        (
            put("weight_scale", lambda t: (t.float() - 127).exp2()),
            f"{UP}.weight_scale is float32, but its layer takes uint8",
        ),
        (
            put("weight", lambda t: t.float().to(torch.float8_e5m2)),
            f"{UP}.weight is float8_e5m2, but its layer takes float8_e4m3fn",
        ),
        (
            put("weight", lambda t: t[:, :32].clone()),
            f"{UP}.weight has shape [96, 32], but config.json makes it [96, 64]",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(
    checkpoint: Callable[[str], Path], change: Any, text: str, tmp_path: Path
) -> None:
    path, _ = quantized(checkpoint("llama31"), tmp_path, *FORMATS["modelopt"])
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(changed(path, change))


def test_shares_that_cut_groups_are_refused() -> None:
    config = FORMATS["fp8"][1]
    methods = read_methods({"quantization_config": config}, torch.bfloat16, HOST)
    with pytest.raises(BadModel, match=r"mxfp8 has groups of 32 inputs, but .* has 48 inputs"):
        methods.of(UP).allocate(64, 48)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({**MODELOPT, "quant_algo": "MXFP8", "group_size": 16}, "group_size 16 is not supported"),
        ({**FP8, "activation_scheme": "static"}, "activation_scheme 'static' is not supported"),
        ({**FP8, "fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
        ({**FP8, "expert_dtype": "fp4"}, "expert_dtype 'fp4' is not supported; supported: 'fp8'"),
        ({**FP8, "modules_to_convert": ["ple"]}, "modules_to_convert ['ple'] is not supported"),
        (
            {**FP8, "quant_method": "mxfp8", "weight_block_size": [128, 128]},
            "weight_block_size [128, 128] is not supported; supported: [1, 32]",
        ),
        (
            {"quant_method": "mxfp8", "scale_fmt": "float"},
            "scale_fmt 'float' is not supported; supported: 'ue8m0'",
        ),
    ],
)
def test_settings_are_refused_by_name(config: dict[str, Any], text: str) -> None:
    with pytest.raises(BadModel, match=re.escape(text)):
        read_methods({"quantization_config": config}, torch.float32, HOST)


def test_other_blocks_of_powers_of_two_are_fp8() -> None:
    """Their scales have one of the float dtypes."""
    for block in ([128, 128], [1, 64]):
        config = {**FP8, "weight_block_size": block}
        methods = read_methods({"quantization_config": config}, torch.float32, HOST)
        assert type(methods.of(UP)).__name__ == "Fp8"


def test_the_flag_agrees_with_no_mxfp8() -> None:
    raw = {"quantization_config": FORMATS["modelopt"][1]}
    with pytest.raises(BadSetting, match="--quantize fp8 contradicts the checkpoint"):
        read_methods(raw, torch.float32, HOST, "fp8")


def test_stored_scales_make_experts_mxfp8() -> None:
    """Whatever config.json says of modules; other matrices are floats."""
    scales = "experts.w13_weight_scale"
    named = read_methods({"quantization_config": FP8}, torch.float32, HOST)
    for methods in (named, Methods(Unquantized(torch.float32, HOST))):
        found = with_stored_experts(methods, scales, [f"layers.0.mlp.{scales}"])
        assert isinstance(found.of("blocks.0.mlp.experts.down"), MxFp8)
        for path in ("lm_head", "blocks.0.attention.out", "blocks.0.mlp.shared_experts.down"):
            assert found.of(path) is methods.plain
        assert with_stored_experts(methods, scales, ["layers.0.mlp.w13_weight"]) is methods
        assert with_stored_experts(methods, "", ["layers.0.mlp.w13_weight"]) is methods
