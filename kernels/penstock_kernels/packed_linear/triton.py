"""Triton implementation of packed_linear: chooses a kernel and launches it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..act_mul import act_mul
from ..device import arrivals, divided_up, is_hopper, power_of_two, processors
from ..linear import linear
from ..op import ArchKernel
from . import float8
from .plan import (
    COUNTERS,
    DEQUANTIZE_ROWS,
    DEQUANTIZE_ROWS_ON_HOPPER,
    GATED_ROWS,
    LEAST_ROWS,
    MOST_ROWS,
    TILE,
)
from .portable import dequantize, multiply
from .weight import PackedWeight

HOPPER = ArchKernel(f"{__package__}.hopper", is_hopper)
ROW = ArchKernel(f"{__package__}.hopper_row", is_hopper)  # of one row
MANY = ArchKernel(f"{__package__}.hopper_many", is_hopper)  # of many rows, codes of 4 bits


def packed_linear(
    x: Tensor, weight: PackedWeight, bias: Tensor | None = None, gated: bool = False
) -> Tensor:
    """See the package."""
    rows = x.shape[0]
    outputs = weight.outputs // (2 if gated else 1)
    if not rows or not outputs:
        return x.new_empty((rows, outputs))
    if rows > MOST_ROWS // 2 and weight.kind.bits == 4:
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
        if MANY.launch(x.device, x, weight, bias, gated, out):
            return out
    if gated and rows > GATED_ROWS:
        return act_mul(packed_linear(x, weight, bias))
    if float8.takes(x, weight):
        return float8.multiply(float8.rounded(x), weight, bias, x.dtype)
    on_hopper = is_hopper(x.device)
    if rows <= (DEQUANTIZE_ROWS_ON_HOPPER if on_hopper else DEQUANTIZE_ROWS):
        out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
        if rows == 1 and ROW.launch(x.device, x, weight, bias, gated, out):
            return out
        if HOPPER.launch(x.device, x, weight, bias, gated, out):
            return out
        # The up outputs must begin with a tile.
        if rows <= DEQUANTIZE_ROWS and not (gated and outputs % TILE):
            _multiply(x, weight, bias, gated, out)
            return out
    product = linear(x, dequantized(weight, x.dtype), bias)
    return act_mul(product) if gated else product


def dequantized(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """The matrix [outputs, inputs]."""
    shape = weight.outputs, weight.inputs
    out = torch.empty(shape, dtype=dtype, device=weight.words.device)
    grid = divided_up(weight.inputs, TILE), divided_up(weight.outputs, TILE)
    dequantize[grid](*_tensors(weight), out, *shape, weight.group, **_kind(weight), num_warps=4)
    return out


def _multiply(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, gated: bool, out: Tensor
) -> None:
    rows, outputs = out.shape
    tiles, blocks = divided_up(outputs, TILE), divided_up(weight.inputs, TILE)
    splits = 1
    while (
        not gated and splits < 8 and tiles * splits < processors(x.device) and blocks > 2 * splits
    ):
        splits *= 2
    partial, arrived = out, out
    if splits > 1:
        partial = torch.empty((splits, rows, outputs), dtype=torch.float32, device=x.device)
        arrived = arrivals(x.device, COUNTERS)
    multiply[(tiles, splits)](
        x,
        *_tensors(weight),
        x if bias is None else bias,
        out,
        partial,
        arrived,
        x.stride(0),
        rows,
        outputs,
        weight.inputs,
        weight.group,
        divided_up(blocks, splits) * TILE,
        **_kind(weight),
        HAS_BIAS=bias is not None,
        GATED=gated,
        ROWS=max(LEAST_ROWS, power_of_two(rows)),
        SPLITS=splits,
        num_warps=4,
    )


def _tensors(weight: PackedWeight) -> tuple[Tensor, Tensor, Tensor]:
    zeros = weight.scales if weight.zeros is None else weight.zeros
    return weight.words, weight.scales, zeros


def _kind(weight: PackedWeight) -> dict[str, str | int | bool]:
    return {
        "KIND": weight.kind.value,
        "BITS": weight.kind.bits,
        "ZERO": weight.kind.zero,
        "HAS_ZEROS": weight.zeros is not None,
    }
