"""Rows of x rounded to e4m3 with a scale per 128 inputs, in the order of places.

Blocks of 1 x 128 inputs are what checkpoints of float8 in blocks of 128 x 128 are made for:
DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.3.2.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_options, power_of_two
from ..packed_linear.float8 import LARGEST, lanes_of
from ..packed_linear.weight import LINE, Kind, PackedWeight
from .sort import MOST_COLUMNS, Tiled


class Rounded(NamedTuple):
    """Rows in the order of places; the last ones, beyond all choices, are unwritten."""

    codes: Tensor
    """[choices + rows, inputs] e4m3, inputs in the order of `in_lanes`."""
    scales: Tensor
    """[inputs / 128, at least choices + rows] float32: of each row's blocks."""


@triton.jit
def round_row(
    x, places, codes, scales, x_stride, inputs, scale_stride,
    TOP_K: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One row of x a program, to the places of a token's choices. TOP_K 0: to its own place."""
    row = tl.program_id(0).to(tl.int64)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    for start in range(0, inputs, BLOCK):
        column = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * x_stride + column, column < inputs, other=0).to(tl.float32)
        blocks = tl.reshape(values, [BLOCK // 128, 128])
        scale = tl.maximum(tl.max(tl.abs(blocks), 1), 1e-12) / LARGEST
        rounded = (blocks / scale[:, None]).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        lanes = lanes_of(rounded, BLOCK)
        block = start // 128 + tl.arange(0, BLOCK // 128)
        for turn in tl.static_range(TOP_K if TOP_K else 1):
            place = tl.load(places + row * TOP_K + turn).to(tl.int64) if TOP_K else row
            end = tl.where(place >= 0, inputs, 0)
            tl.store(codes + place * inputs + column, lanes, column < end)
            tl.store(scales + block * scale_stride + place, scale, block * 128 < end)


def rounded(x: Tensor, tiled: Tiled, spread: bool) -> Rounded:
    """Rows of x, rounded. `spread`: x are tokens' rows [T, inputs]; otherwise they have places."""
    inputs, places = x.shape[1], len(tiled.order) + tiled.rows
    codes = torch.empty((places, inputs), dtype=torch.float8_e4m3fn, device=x.device)
    # Triton compiles a kernel again for numbers that 16 does not divide.
    length = divided_up(places, 16) * 16
    scales = torch.empty((inputs // LINE, length), dtype=torch.float32, device=x.device)
    block = min(MOST_COLUMNS, power_of_two(inputs))
    round_row[(len(x) if spread else len(tiled.order),)](
        x,
        tiled.places,
        codes.view(torch.uint8),
        scales,
        x.stride(0),
        inputs,
        scales.shape[1],
        TOP_K=tiled.top_k if spread else 0,
        BLOCK=block,
        LARGEST=LARGEST,
        num_warps=max(1, block // 512),
        **early_options(x.device),
    )
    return Rounded(codes, scales)


def takes_float8(weight: PackedWeight, dtype: torch.dtype) -> bool:
    """Whether experts of many rows are multiplied as float8: x is bfloat16, and a scale of the
    weights is of whole blocks of x."""
    blocks = weight.kind is Kind.FP8 and weight.group % LINE == 0
    aligned = weight.scales.is_contiguous() and weight.outputs * weight.scales.itemsize % 16 == 0
    return blocks and aligned and dtype == torch.bfloat16
