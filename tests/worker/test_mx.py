"""float4 checkpoints of GPT-OSS's layout and of the Model Optimizer, from their documentation."""

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
from penstock.faults import BadModel
from penstock.quant import Unquantized, read_methods
from penstock.quant.mx import MxFp4, MxNames, NvFp4, NvNames, powers
from quantized import (
    UP,
    Quantize,
    assert_equal_model,
    assert_equal_ranks,
    changed,
    put,
    quantized,
    wide,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

HOST = torch.device("cpu")
# e2m1, sign in the highest bit: OCP microscaling formats, 2023, table 5.
VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
TABLE = torch.tensor(VALUES + [-value for value in VALUES], dtype=torch.float64)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def nearest(scaled: Tensor) -> Tensor:
    """Codes uint8 of the values of TABLE next to each number."""
    return (scaled.double()[..., None] - TABLE).abs().argmin(-1).to(torch.uint8)


def mxfp4(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """[outputs, inputs / 32, 16] bytes, the even input in the lower half; exponents + 127."""
    groups = matrix.double().view(len(matrix), -1, 32)
    exponents = (groups.abs().amax(-1) / 6).log2().ceil()
    scales = exponents.exp2()[..., None]
    codes = nearest(groups / scales)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    stored = {"weight_blocks": blocks, "weight_scales": (exponents + 127).to(torch.uint8)}
    return stored, (TABLE[codes.long()] * scales).view(matrix.shape)


def nvfp4(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """Scales of 16 inputs are e4m3, times a scale of the matrix: the Model Optimizer's tensors."""
    groups = matrix.double().view(len(matrix), -1, 16)
    whole = (matrix.abs().max() / (6 * 448)).float()
    scales = (groups.abs().amax(-1) / 6 / whole.double()).to(torch.float8_e4m3fn)
    factors = (scales.double() * whole.double())[..., None]
    codes = nearest(groups / factors).view(matrix.shape)
    stored = {
        "weight": codes[:, 0::2] | codes[:, 1::2] << 4,
        "weight_scale": scales,
        "weight_scale_2": whole,
        "input_scale": torch.tensor(0.01),
    }
    return stored, (TABLE[codes.long()].view(groups.shape) * factors).view(matrix.shape)


def fp8(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    scale = matrix.abs().max() / 448
    codes = (matrix / scale).to(torch.float8_e4m3fn)
    stored = {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.01)}
    return stored, codes.double() * scale.double()


MODELOPT = {
    "quant_method": "modelopt",
    "producer": {"name": "modelopt", "version": "0.40.0"},
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
    "ignore": ["lm_head"],
}


def mxfp4_e8m0(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """The same bytes, as files name them that know the dtype."""
    stored, exact = mxfp4(matrix)
    scales = stored["weight_scales"].view(torch.float8_e8m0fnu)
    return {**stored, "weight_scales": scales}, exact


FORMATS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "mxfp4": (
        mxfp4,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens", "lm_head"]},
    ),
    "mxfp4-e8m0": (mxfp4_e8m0, {"quant_method": "mxfp4"}),
    "nvfp4": (nvfp4, {**MODELOPT, "quant_algo": "NVFP4"}),
    "nvfp4-vllm": (nvfp4, {**MODELOPT, "quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}),
    "modelopt-fp8": (fp8, {**MODELOPT, "quant_algo": "FP8"}),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["llama31", "phi3-longrope"])
def test_the_model_computes_what_its_weights_stand_for(
    checkpoint: Callable[[str], Path], case: str, name: str, tmp_path: Path
) -> None:
    assert_equal_model(*quantized(checkpoint(case), tmp_path, *FORMATS[name]))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["llama31", "phi3-longrope"])
def test_two_ranks(case: str, name: str, tmp_path: Path) -> None:
    assert_equal_ranks(*quantized(wide(case, tmp_path), tmp_path, *FORMATS[name]))


def test_a_star_in_a_list_of_modules_stands_for_anything(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As GPT-OSS's and the Model Optimizer's lists have it."""
    quantize, config = FORMATS["nvfp4"]
    config = {**config, "ignore": ["*lm_head*", "model.layers.*.self_attn", "model.layers.1*"]}
    kept = r"lm_head|self_attn|layers\.1\."
    path, exact = quantized(checkpoint("llama31"), tmp_path, quantize, config, kept)
    assert_equal_model(path, exact)


@pytest.mark.parametrize("name", ["nvfp4", "modelopt-fp8"])
def test_settings_in_a_file_of_their_own(
    checkpoint: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    """As the Model Optimizer wrote them before transformers had a place for them."""
    quantize, config = FORMATS[name]
    path, exact = quantized(checkpoint("llama31"), tmp_path, quantize, config)
    raw = json.loads((path / "config.json").read_text())
    algorithm = raw.pop("quantization_config")["quant_algo"]
    (path / "config.json").write_text(json.dumps(raw))
    settings = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": None,
        "exclude_modules": ["lm_head"],
    }
    file = {"producer": {"name": "modelopt"}, "quantization": settings}
    (path / "hf_quant_config.json").write_text(json.dumps(file))
    assert_equal_model(path, exact)


@pytest.mark.parametrize("names", ["self_attn.{}_scale", "self_attn.{0}_proj.{0}_scale"])
def test_scales_of_a_quantized_cache_have_no_place(
    checkpoint: Callable[[str], Path], names: str, tmp_path: Path
) -> None:
    quantize, config = FORMATS["modelopt-fp8"]
    config = {**config, "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}
    path, exact = quantized(checkpoint("llama31"), tmp_path, quantize, config)
    tensors = load_file(path / "model.safetensors")
    for layer in range(3):
        for one in "kv":
            tensors[f"model.layers.{layer}.{names.format(one)}"] = torch.tensor(0.5)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert_equal_model(path, exact)


def test_powers_are_exact_in_the_dtype_that_is_kept() -> None:
    exponents = torch.arange(255, dtype=torch.uint8)
    exact = torch.exp2(exponents.double() - 127)
    assert torch.equal(powers(exponents).double(), exact)
    assert torch.equal(powers(exponents).bfloat16().double(), exact)


def test_scales_keep_their_precision() -> None:
    """Whatever the model's dtype: the range of float16 is too small for powers of two."""
    plain = Unquantized(torch.float16, HOST)
    assert MxFp4(plain, MxNames("a", "b")).scale_dtype == torch.bfloat16
    assert NvFp4(plain, NvNames("a", "b", False)).scale_dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "mxfp4",
            put("weight_blocks", lambda t: t.flatten(1).clone()),
            f"{UP}.weight_blocks has shape [96, 32], but config.json makes it [96, 2, 16]",
        ),
        (
            "mxfp4",
            put("weight_scales", lambda t: t[:, :1].clone()),
            f"{UP}.weight_scales has shape [96, 1], but config.json makes it [96, 2]",
        ),
        (
            "nvfp4",
            lambda tensors: tensors.pop(f"{UP}.weight_scale_2"),
            f"lacks tensors: {UP}.weight_scale_2",
        ),
        (
            "nvfp4",
            put("weight_scale_2", lambda t: t.repeat(2)),
            f"{UP}.weight_scale_2 has shape [2], but config.json makes it [1, 1]",
        ),
        (
            "nvfp4",
            put("weight", lambda t: t.char()),
            f"{UP}.weight is int8, but its layer takes uint8",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(
    checkpoint: Callable[[str], Path], name: str, change: Any, text: str, tmp_path: Path
) -> None:
    path, _ = quantized(checkpoint("llama31"), tmp_path, *FORMATS[name])
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(changed(path, change))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"quant_method": "modelopt"}, "quant_algo None is not supported; supported: 'FP8'"),
        ({**MODELOPT, "quant_algo": "NVFP4_AWQ"}, "quant_algo 'NVFP4_AWQ' is not supported"),
        (
            {**MODELOPT, "quant_method": "modelopt_fp4", "quant_algo": "FP8"},
            "quant_algo 'FP8' is not supported; supported: 'NVFP4', 'W4A16_NVFP4'",
        ),
        ({**MODELOPT, "quant_algo": "NVFP4", "group_size": 32}, "group_size 32 is not supported"),
        ({"quant_method": "mxfp4", "bits": 3}, "bits 3 is not supported"),
        ({"quant_method": "mxfp5"}, "quant_method 'mxfp5', which is not supported"),
    ],
)
def test_settings_are_refused_by_name(config: dict[str, Any], text: str) -> None:
    with pytest.raises(BadModel, match=re.escape(text)):
        read_methods({"quantization_config": config}, torch.float32, HOST)
