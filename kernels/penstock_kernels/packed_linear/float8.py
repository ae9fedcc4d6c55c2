"""Products of float8 weights and many rows: x is rounded to e4m3, too, with a scale per row.

Tensor cores multiply float8 twice as fast as 16 bits. A row's scale maps its largest magnitude to
448, the largest number of e4m3: LLM.int8()'s vector-wise quantization (arXiv:2208.07339, section
2.1), with floats.
"""
# mypy: allow-untyped-decorators

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from .weight import LINE, Kind, PackedWeight

LARGEST = 448.0


@triton.jit
def _round_rows(  # type: ignore[no-untyped-def]
    x, codes, scales, x_stride, inputs, width, LARGEST: tl.constexpr, PLACES: tl.constexpr
):
    """codes [rows, width] e4m3 as `in_lanes` orders them, and scales [rows]; a program per row."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PLACES)
    bits = place % 128
    column = place - bits + ((bits & 1) | (bits >> 5) << 1 | ((bits >> 1) & 15) << 3)
    values = tl.load(x + row * x_stride + column, column < inputs, other=0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), 0), 1e-12) / LARGEST
    tl.store(scales + row, scale)
    rounded = (values / scale).to(tl.float8e4nv)
    tl.store(codes + row * width + place, rounded.to(tl.uint8, bitcast=True), place < width)


def takes(x: Tensor, weight: PackedWeight) -> bool:
    """Whether the device multiplies such tensors as float8."""
    whole = weight.kind is Kind.FP8 and weight.scales.shape[0] == 1 and weight.outputs % 16 == 0
    return whole and x.dtype == torch.bfloat16 and _multiplies_float8(x.device)


@lru_cache
def _multiplies_float8(device: torch.device) -> bool:
    """Compute capability 8.9 and later."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 9)


def multiply(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """x W^T + b [m, n], of x rounded to e4m3."""
    codes, scales = rounded(x, divided_up(weight.inputs, LINE) * LINE)
    return torch._scaled_mm(
        codes,
        weight.words.view(torch.float8_e4m3fn).t(),
        scale_a=scales,
        scale_b=weight.scales.float(),
        bias=bias,
        out_dtype=x.dtype,
        use_fast_accum=True,
    )


def rounded(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(x as e4m3 [m, width] in the order of `in_lanes`, then zeros; scales [m, 1] float32)."""
    codes = torch.empty((len(x), width), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((len(x), 1), dtype=torch.float32, device=x.device)
    places = power_of_two(width)
    _round_rows[(len(x),)](
        x,
        codes.view(torch.uint8),
        scales,
        x.stride(0),
        x.shape[1],
        width,
        LARGEST=LARGEST,
        PLACES=places,
        num_warps=min(16, max(1, places // 512)),
    )
    return codes, scales
