"""Checkpoints of NVIDIA's Model Optimizer: algorithms beside those of other formats' tests, and a
mixture of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from penstock.faults import BadModel
from penstock.quant import read_methods
from quantized import HOST, Quantize, assert_equal_model, assert_equal_ranks, quantized
from test_mx import MODELOPT, fp8, nvfp4
from torch import Tensor


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def fp8_channels(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """A vector of scales, one per output; activations have scales of their rows."""
    scales = matrix.abs().amax(1) / 448
    codes = (matrix / scales[:, None]).to(torch.float8_e4m3fn)
    exact = codes.double() * scales[:, None].double()
    return {"weight": codes, "weight_scale": scales}, exact


def nvfp4_weights(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """Without a scale of activations."""
    stored, exact = nvfp4(matrix)
    return {name: part for name, part in stored.items() if name != "input_scale"}, exact


FORMATS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "fp8 by channel": (fp8_channels, {**MODELOPT, "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}),
    "nvfp4, weights alone": (
        nvfp4_weights,
        {**MODELOPT, "quant_algo": "W4A16_NVFP4", "group_size": 16},
    ),
}


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
@pytest.mark.parametrize("name", FORMATS)
def test_the_model_computes_what_its_weights_stand_for(
    checkpoint: Callable[[str], Path], name: str, check: Callable[..., None], tmp_path: Path
) -> None:
    check(*quantized(checkpoint("llama31"), tmp_path, *FORMATS[name]))


def mixed(tmp: Path) -> dict[str, Any]:
    """Downs in nvfp4, what a layer's attention has in fp8; all else stays as it is."""
    layers = json.loads((tmp / "config.json").read_text())["num_hidden_layers"]
    four, eight = {"quant_algo": "NVFP4", "group_size": 16}, {"quant_algo": "FP8"}
    named = {f"model.layers.{i}.mlp.down_proj": four for i in range(layers)}
    named |= {f"model.layers.{i}.self_attn": eight for i in range(layers)}
    return {**MODELOPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": named}


@pytest.mark.parametrize("settings", [{}, {"model_backend": "transformers"}])
def test_modules_have_their_own_algorithms(
    checkpoint: Callable[[str], Path], settings: dict[str, str], tmp_path: Path
) -> None:
    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        return (nvfp4 if matrix.shape == (64, 96) else fp8)(matrix)

    path = checkpoint("llama31")
    made = quantized(path, tmp_path, quantize, mixed(path), r"lm_head|gate_proj|up_proj")
    assert_equal_model(*made, **settings)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (None, "quantized_layers must be an object, found None"),
        ({"a.b": 3}, "quantized_layers.a.b must be an object, found 3"),
        ({"a.b": {}}, "quantized_layers.a.b.quant_algo None is not supported; supported: 'FP8'"),
        ({"a.b": {"quant_algo": "MIXED_PRECISION"}}, "quant_algo 'MIXED_PRECISION' is not"),
        ({"a.b": {"quant_algo": "NVFP4", "group_size": 32}}, "a.b.group_size 32 is not supported"),
        ({"a.b": {"quant_algo": "FP8", "rank": 8}}, "quantized_layers.a.b.rank 8 is not supported"),
    ],
)
def test_modules_are_refused_by_name(layers: Any, text: str) -> None:
    config = {**MODELOPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    with pytest.raises(BadModel, match=re.escape(text)):
        read_methods({"quantization_config": config}, torch.float32, HOST)
