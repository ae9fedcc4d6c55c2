"""Integers of compressed-tensors: the library wrote the checkpoints and reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from local import LocalWorker, Refused
from penstock.faults import BadModel
from penstock.quant import read_methods
from quantized import (
    HOST,
    UP,
    Quantize,
    assert_equal_model,
    assert_equal_ranks,
    changed,
    drop,
    put,
    quantized,
)
from test_compressed_tensors import config_of, scheme
from test_gptq import group_index, packed, rounded
from torch import Tensor

INT4: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True}
INT8 = {**INT4, "num_bits": 8}
GROUPS = {"strategy": "group", "group_size": 32}
TOKEN = {**INT8, "strategy": "token", "dynamic": True}
STATIC = {**INT8, "strategy": "tensor", "dynamic": False}
FORMATS = {
    "w4a16": scheme("pack-quantized", {**INT4, **GROUPS}),
    "w4a16-asymmetric": scheme("pack-quantized", {**INT4, **GROUPS, "symmetric": False}),
    "w4a16-channel": scheme("pack-quantized", {**INT4, "strategy": "channel"}),
    "w8a16": scheme("pack-quantized", {**INT8, **GROUPS, "actorder": "weight"}),
    "w8a8-dynamic": scheme("int-quantized", {**INT8, "strategy": "channel"}, TOKEN),
    "w8a8-static": scheme("int-quantized", {**INT8, "strategy": "tensor"}, STATIC),
    "w8-asymmetric": scheme("naive-quantized", {**INT8, **GROUPS, "symmetric": False}),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def by_library(name: str, group: dict[str, Any]) -> Quantize:
    """What the library stores, and what it reads in that."""
    compressor = BaseCompressor.get_value_from_registry(name)
    parsed = QuantizationScheme(**group)
    args = parsed.weights

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        width = {"group": args.group_size, "channel": matrix.shape[1]}.get(args.strategy, 0)
        parts = matrix.view(len(matrix), -1, width) if width else matrix.view(1, 1, -1)
        scale, zero = calculate_qparams(parts.amin(2), parts.amax(2), args)
        scale = scale if width else scale.view(1)
        state = {"weight": matrix, "weight_scale": scale, "weight_zero_point": zero}
        if parsed.input_activations is not None and not parsed.input_activations.dynamic:
            state["input_scale"] = torch.tensor([0.5])
        stored = compressor.compress(state, parsed)
        return stored, compressor.decompress(stored, parsed)["weight"].double()

    return quantize


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_the_model_computes_what_the_library_reads(
    checkpoint: Callable[[str], Path], check: Callable[..., None], name: str, tmp_path: Path
) -> None:
    made = by_library(*FORMATS[name]), config_of(*FORMATS[name])
    check(*quantized(checkpoint("llama31"), tmp_path, *made))


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_rows_that_rotate_are_reordered(
    checkpoint: Callable[[str], Path], check: Callable[..., None], tmp_path: Path
) -> None:
    """Zero points of eight rows are one number."""
    form = FORMATS["w4a16-asymmetric"]
    made = by_library(*form), config_of(*form)
    check(*quantized(checkpoint("phi3-longrope"), tmp_path, *made))


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_groups_in_order_of_activations(
    checkpoint: Callable[[str], Path], check: Callable[..., None], tmp_path: Path
) -> None:
    """actorder group, which older versions of the library wrote: columns are in order of the
    inputs, and weight_g_idx names their groups."""
    config = config_of(*FORMATS["w4a16"])
    config["config_groups"]["group_0"]["weights"]["actorder"] = "group"

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        index = group_index(matrix.shape[1], 32, desc_act=True)
        codes, scales, _, exact = rounded(matrix, index, 4, sym=True)
        tensors = {"weight_packed": packed(codes, 4, 1), "weight_scale": scales.t().half()}
        shape = torch.tensor(matrix.shape)
        return {**tensors, "weight_g_idx": index.int(), "weight_shape": shape}, exact

    check(*quantized(checkpoint("llama31"), tmp_path, quantize, config))


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("w4a16", drop("weight_scale"), f"lacks tensors: {UP}.weight_scale"),
        ("w8a8-static", drop("input_scale"), f"lacks tensors: {UP}.input_scale"),
        ("w4a16-asymmetric", drop("weight_zero_point"), f"lacks tensors: {UP}.weight_zero_point"),
        (
            "w4a16",
            put("weight_packed", lambda t: t[:, :4].clone()),
            f"{UP}.weight_packed has shape [96, 4], but config.json makes it [96, 8]",
        ),
        (
            "w8a8-dynamic",
            put("weight", lambda t: t.float()),
            f"{UP}.weight is float32, but its layer takes int8",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(
    checkpoint: Callable[[str], Path], name: str, change: Any, text: str, tmp_path: Path
) -> None:
    made = by_library(*FORMATS[name]), config_of(*FORMATS[name])
    path, _ = quantized(checkpoint("llama31"), tmp_path, *made)
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(changed(path, change))


@pytest.mark.parametrize(
    ("name", "weights", "text"),
    [
        ("w4a16", {"num_bits": 3}, "weights.num_bits 3 is not supported; supported: 4, 8"),
        ("w4a16", {"group_size": 20}, "weights.group_size 20 is not supported"),
        ("w4a16", {"strategy": "block"}, "weights.strategy 'block' is not supported"),
        ("w4a16", {"actorder": "random"}, "weights.actorder 'random' is not supported"),
        ("w8a8-static", {"symmetric": False}, "weights.symmetric False is not supported with"),
        ("w8a8-dynamic", {"num_bits": 4}, "weights.num_bits 4 is not supported; supported: 8"),
    ],
)
def test_settings_are_refused_by_name(name: str, weights: dict[str, Any], text: str) -> None:
    config = config_of(*FORMATS[name])
    config["config_groups"]["group_0"]["weights"] |= weights
    with pytest.raises(BadModel, match=re.escape(text)):
        read_methods({"quantization_config": config}, torch.float32, HOST)
