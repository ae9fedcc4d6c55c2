"""Triton kernel of silu_mul: one program per row and tile of columns."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..sizes import divided_up, power_of_two

TILE = 2048


@triton.jit
def _gate_tile(x, out, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    gate = tl.load(x + row * x_stride + column, inside, other=0).to(tl.float32)
    up = tl.load(x + row * x_stride + columns + column, inside, other=0).to(tl.float32)
    gated = gate * tl.sigmoid(gate) * up
    tl.store(out + row * columns + column, gated.to(out.dtype.element_ty), inside)


def silu_mul(x: Tensor) -> Tensor:
    """See the public function."""
    rows, columns = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    block = min(TILE, power_of_two(columns))
    if rows:
        grid = (rows, divided_up(columns, block))
        _gate_tile[grid](x, out, x.stride(0), columns, BLOCK=block, num_warps=4)
    return out
