"""Triton kernel of gated_head_norm: a program takes some heads of one token."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two

ELEMENTS = 1024  # of a program; its four warps hold 8 in a thread


@triton.jit
def _normalise(
    x, gate, weight, out, x_strides, gate_strides, eps,
    HEADS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
    GATE_FIRST: tl.constexpr, SILU: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (head < HEADS) & (column < D)
    values = x + token * x_strides[0] + head * x_strides[1] + column
    gates = gate + token * gate_strides[0] + head * gate_strides[1] + column
    value = tl.load(values, inside, other=0).to(tl.float32)
    closed = tl.load(gates, inside, other=0).to(tl.float32)
    opened = tl.sigmoid(closed)
    if SILU:
        opened *= closed
    if GATE_FIRST:
        value *= opened
    scale = tl.rsqrt(tl.sum(value * value, 1) / D + eps)
    if OWN:
        factor = tl.load(weight + head * D + column, inside, other=0).to(tl.float32)
    else:
        factor = tl.load(weight + column, column < D, other=0).to(tl.float32)
    normed = value * scale[:, None] * factor
    if not GATE_FIRST:
        normed *= opened
    places = out + (token * HEADS + head) * D + column
    tl.store(places, normed.to(out.dtype.element_ty), inside)


def gated_head_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    eps: float,
    gate_first: bool = False,
    activation: str = "silu",
) -> Tensor:
    """See the public function."""
    tokens, heads, size = x.shape
    columns = power_of_two(size)
    rows = max(1, min(ELEMENTS // columns, power_of_two(heads)))
    out = x.new_empty(x.shape)
    if tokens:
        _normalise[(tokens, divided_up(heads, rows))](
            *(x, gate, weight, out, x.stride()[:2], gate.stride()[:2], eps),
            HEADS=heads,
            D=size,
            COLUMNS=columns,
            ROWS=rows,
            GATE_FIRST=gate_first,
            SILU=activation == "silu",
            OWN=weight.dim() == 2,
            num_warps=4,
        )
    return out
