"""EETQ checkpoints, written here by the loops of FasterTransformer's preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import write
from local import LocalWorker, Refused
from penstock.faults import BadModel
from penstock.quant import read_methods
from quantized import HOST, UP, WIDE, assert_equal_model, assert_equal_ranks, changed, quantized
from torch import Tensor

CONFIG = {"quant_method": "eetq", "weights": "int8"}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("wide") / "model", **WIDE)


def preprocessed(matrix: Any) -> Any:
    """Of int8 [inputs, outputs], as preprocess_weights_for_mixed_gemm stores it."""
    inputs, outputs = matrix.shape
    permuted = np.empty_like(matrix)  # permute_B_rows_for_mixed_gemm
    for base in range(0, inputs, 16):
        for row in range(16):
            read = 8 * ((row % 4) // 2) + row % 2 + 2 * (row // 4)
            permuted[base + row] = matrix[base + read]
    columns = permuted.T.copy().view(np.int32)  # subbyte_transpose; four inputs at a time
    vectors, tile = inputs // 4, 64 // 4
    interleaved = np.empty(outputs * vectors, np.int32)  # interleave_column_major_tensor
    for column in range(outputs):
        for base in range(0, vectors, tile):
            for vector in range(base, base + tile):
                place = 2 * base + tile * (column % 2) + vector % tile
                interleaved[column // 2 * vectors * 2 + place] = columns[column, vector]
    # add_bias_and_interleave_int8s_inplace
    biased = (interleaved.view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    for register in range(0, len(biased), 4):
        second, third = biased[register + 1], biased[register + 2]
        biased[register + 1], biased[register + 2] = third, second
    return biased.view(np.int8).reshape(inputs, outputs)


def eetq(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    scales = (matrix.abs().amax(1) / 127).half()
    codes = (matrix / scales.float()[:, None]).round().clamp(-128, 127).to(torch.int8)
    stored = torch.from_numpy(preprocessed(codes.t().contiguous().numpy()))
    exact = codes.double() * scales.double()[:, None]
    return {"weight": stored, "weight_scales": scales}, exact


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_eetq(wide: Path, check: Callable[..., None], tmp_path: Path) -> None:
    check(*quantized(wide, tmp_path, eetq, CONFIG), quantize="eetq")


def test_modules_that_stay_plain(wide: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "modules_to_not_convert": ["down_proj"]}
    assert_equal_model(*quantized(wide, tmp_path, eetq, config, kept="lm_head|down_proj"))


def test_checkpoints_that_do_not_fit_are_refused(wide: Path, tmp_path: Path) -> None:
    path, _ = quantized(wide, tmp_path, eetq, CONFIG)
    changed(path, lambda t: t.update({f"{UP}.weight": t[f"{UP}.weight"].t().contiguous()}))
    with pytest.raises(Refused, match=rf"{UP}.weight has shape \[512, 256\], .* \[256, 512\]"):
        LocalWorker().load(path)
    changed(path, lambda t: t.pop(f"{UP}.weight_scales"))
    with pytest.raises(Refused, match=f"lacks tensors: {UP}.weight_scales"):
        LocalWorker().load(path)


def test_inputs_without_whole_tiles_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model", model_type="llama", intermediate_size=96)

    def convert(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        stored = torch.zeros(matrix.shape[::-1], dtype=torch.int8)
        return {"weight": stored, "weight_scales": torch.ones(len(matrix))}, matrix.double()

    with pytest.raises(Refused, match="64 inputs together, but a layer has 64 outputs and 96 inp"):
        LocalWorker().load(quantized(path, tmp_path, convert, CONFIG)[0])


def test_other_weights_are_refused_by_name() -> None:
    config = {**CONFIG, "weights": "int4"}
    with pytest.raises(BadModel, match=r"weights 'int4' is not supported; supported: 'int8'"):
        read_methods({"quantization_config": config}, torch.float32, HOST)
