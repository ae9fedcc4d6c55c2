"""Triton kernel of act_mul: one program per row and tile of columns."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from . import reference

TILE = 2048
ROOT_HALF = tl.constexpr(0.7071067811865476)  # sqrt(1 / 2)
TWICE_ROOT = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
SLOPE = tl.constexpr(reference.SLOPE)


@triton.jit
def _activated(z, ACTIVATION: tl.constexpr):
    """`z` in float32. With tanh(a) = 2 sigmoid(2 a) - 1, all but one are gates by sigmoid."""
    if ACTIVATION == "gelu":
        return 0.5 * z * (1.0 + tl.erf(z * ROOT_HALF))
    elif ACTIVATION == "gelu_tanh":  # noqa: RET505
        return z * tl.sigmoid((z + 0.044715 * z * z * z) * TWICE_ROOT)
    elif ACTIVATION == "clamped_swiglu":
        return z * tl.sigmoid(z * SLOPE)
    else:
        return z * tl.sigmoid(z)


@triton.jit
def _gate_tile(
    x, out, x_stride, columns, limit,
    ACTIVATION: tl.constexpr, LIMITED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    gate = tl.load(x + row * x_stride + column, inside, other=0).to(tl.float32)
    up = tl.load(x + row * x_stride + columns + column, inside, other=0).to(tl.float32)
    CLAMPED: tl.constexpr = ACTIVATION == "clamped_swiglu"
    if LIMITED and (CLAMPED or ACTIVATION == "limited_silu"):
        gate = tl.minimum(gate, limit)
    gate = _activated(gate, ACTIVATION)
    if LIMITED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
    if CLAMPED:
        up += 1.0
    tl.store(out + row * columns + column, (gate * up).to(out.dtype.element_ty), inside)


def act_mul(x: Tensor, activation: str = "silu", limit: float = 0.0) -> Tensor:
    """See the public function."""
    rows, columns = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    block = min(TILE, power_of_two(columns))
    if rows:
        grid = (rows, divided_up(columns, block))
        _gate_tile[grid](
            x,
            out,
            x.stride(0),
            columns,
            float(limit),
            ACTIVATION=activation,
            LIMITED=limit > 0,
            BLOCK=block,
            num_warps=4,
        )
    return out
