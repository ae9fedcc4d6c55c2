"""Products of float8 weights and many rows: x is rounded to e4m3, too, with a scale per row.

Tensor cores multiply float8 twice as fast as 16 bits. A row's scale maps its largest magnitude to
448, the largest number of e4m3: LLM.int8()'s vector-wise quantization (arXiv:2208.07339, section
2.1), with floats.
"""
# mypy: allow-untyped-decorators

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_options, power_of_two
from ..rms_norm import NormInput
from .plan import FLOAT8_ROWS
from .weight import LINE, Kind, PackedWeight

LARGEST = 448.0


@triton.jit
def lanes_of(codes, PLACES: tl.constexpr):  # type: ignore[no-untyped-def]
    """[PLACES] codes in the order of `in_lanes`."""
    bits = tl.reshape(codes, [PLACES // 128, 16, 4, 2])  # k6 to k3, k2 and k1, k0
    return tl.reshape(tl.permute(bits, [0, 2, 1, 3]), [PLACES])


@triton.jit
def _store_rounded(  # type: ignore[no-untyped-def]
    values, codes, scales, row, width, LARGEST: tl.constexpr, PLACES: tl.constexpr
):
    """Rounds a row [PLACES] to its place in codes [rows, width], as `in_lanes` orders inputs."""
    scale = tl.maximum(tl.max(tl.abs(values), 0), 1e-12) / LARGEST
    tl.store(scales + row, scale)
    rounded = (values / scale).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    place = tl.arange(0, PLACES)
    tl.store(codes + row * width + place, lanes_of(rounded, PLACES), place < width)


@triton.jit
def _round_rows(  # type: ignore[no-untyped-def]
    x, codes, scales, x_stride, inputs, width,
    LARGEST: tl.constexpr, PLACES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """codes [rows, width] e4m3 and scales [rows] of x; a program per row."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PLACES)
    values = tl.load(x + row * x_stride + column, column < inputs, other=0).to(tl.float32)
    _store_rounded(values, codes, scales, row, width, LARGEST, PLACES)


@triton.jit
def _normalise_rows(  # type: ignore[no-untyped-def]
    x, residual, scale, total, codes, scales, x_stride, residual_stride, inputs, width, eps,
    HAS_RESIDUAL: tl.constexpr, LARGEST: tl.constexpr, PLACES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As `rms_norm`, then `_round_rows`."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PLACES)
    inside = column < inputs
    value = tl.load(x + row * x_stride + column, inside, other=0)
    if HAS_RESIDUAL:
        addend = tl.load(residual + row * residual_stride + column, inside, other=0).to(tl.float32)
        value = (value.to(tl.float32) + addend).to(value.dtype)
        tl.store(total + row * inputs + column, value, inside)
    wide = value.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide) / inputs + eps)
    normed = wide * tl.load(scale + column, inside, other=0).to(tl.float32)
    normed = normed.to(value.dtype).to(tl.float32)
    _store_rounded(normed, codes, scales, row, width, LARGEST, PLACES)


@triton.jit
def _gate_rows(  # type: ignore[no-untyped-def]
    x, codes, scales, x_stride, inputs, width,
    LARGEST: tl.constexpr, PLACES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As `act_mul`, then `_round_rows`."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PLACES)
    gate = tl.load(x + row * x_stride + column, column < inputs, other=0).to(tl.float32)
    up = tl.load(x + row * x_stride + inputs + column, column < inputs, other=0)
    gated = (gate * tl.sigmoid(gate) * up.to(tl.float32)).to(up.dtype).to(tl.float32)
    _store_rounded(gated, codes, scales, row, width, LARGEST, PLACES)


def takes(x: Tensor, weight: PackedWeight) -> bool:
    """Whether such tensors are multiplied as float8: x has many rows, and the device can."""
    whole = weight.kind is Kind.FP8 and weight.scales.shape[0] == 1 and weight.outputs % 16 == 0
    many = len(x) > FLOAT8_ROWS and x.dtype == torch.bfloat16
    return whole and many and _multiplies_float8(x.device)


@lru_cache
def _multiplies_float8(device: torch.device) -> bool:
    """Compute capability 8.9 and later."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 9)


class Rounded(NamedTuple):
    """Rows of x rounded to e4m3."""

    codes: Tensor
    """[m, width] e4m3 in the order of `in_lanes`: inputs, then zeros."""
    scales: Tensor
    """[m, 1] float32."""


def multiply(x: Rounded, weight: PackedWeight, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x W^T + b [m, n] of a dtype."""
    return torch._scaled_mm(
        x.codes,
        weight.words.view(torch.float8_e4m3fn).t(),
        scale_a=x.scales,
        scale_b=weight.scales.float(),
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=True,
    )


def rounded(x: Tensor) -> Rounded:
    """x [m, k] rounded."""
    rows = _room(x, x.shape[1])
    _round_rows[(len(x),)](
        x, rows.codes.view(torch.uint8), rows.scales, x.stride(0), x.shape[1],
        rows.codes.shape[1], **_options(x, x.shape[1]),
    )  # fmt: skip
    return rows


def normed(norm_input: NormInput) -> tuple[Rounded, Tensor]:
    """(`rms_norm` rounded, sum), as `NormInput.normed`."""
    x, residual, scale, eps = norm_input
    rows, inputs = _room(x, x.shape[1]), x.shape[1]
    total = x if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    addend = x if residual is None else residual
    _normalise_rows[(len(x),)](
        x, addend, scale, total, rows.codes.view(torch.uint8), rows.scales, x.stride(0),
        addend.stride(0), inputs, rows.codes.shape[1], eps, HAS_RESIDUAL=residual is not None,
        **_options(x, inputs),
    )  # fmt: skip
    return rows, total


def gated(x: Tensor) -> Rounded:
    """`act_mul` of x [m, 2 * k], rounded."""
    inputs = x.shape[1] // 2
    rows = _room(x, inputs)
    _gate_rows[(len(x),)](
        x, rows.codes.view(torch.uint8), rows.scales, x.stride(0), inputs, rows.codes.shape[1],
        **_options(x, inputs),
    )  # fmt: skip
    return rows


def _room(x: Tensor, inputs: int) -> Rounded:
    width = divided_up(inputs, LINE) * LINE
    codes = torch.empty((len(x), width), dtype=torch.float8_e4m3fn, device=x.device)
    return Rounded(codes, torch.empty((len(x), 1), dtype=torch.float32, device=x.device))


def _options(x: Tensor, inputs: int) -> dict[str, Any]:
    places = max(LINE, power_of_two(inputs))
    warps = min(16, max(1, places // 512))
    return {"LARGEST": LARGEST, "PLACES": places, "num_warps": warps, **early_options(x.device)}
