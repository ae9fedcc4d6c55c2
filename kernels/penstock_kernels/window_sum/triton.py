"""Triton kernel of window_sum: a program takes some elements of one sum."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two

COLUMNS = 128  # elements of a program
TOKENS = 16  # that it reads at once
LOWEST = tl.constexpr(-1.0e38)  # finite: what has seen no token subtracts it without a NaN


@triton.jit
def _sum_window(
    cache, rows, counts, bias, out, first,
    D: tl.constexpr, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """N tokens in windows of M. Nothing is read where no token exists."""
    sum_ = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < D
    parts = N // M * D  # columns of values, and of gates
    begin = N - tl.load(counts + sum_)
    peak = tl.full((COLUMNS,), LOWEST, tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    acc = tl.zeros((COLUMNS,), tl.float32)
    for at in range(begin, N, TOKENS):
        token = at + tl.arange(0, TOKENS)
        exists = token < N
        row = tl.load(rows + sum_ * N + token, exists, other=0).to(tl.int64)
        place = (token // M * D)[:, None] + column[None, :]
        tile = exists[:, None] & inside[None, :]
        source = cache + row[:, None] * W + first + place
        value = tl.load(source, tile, other=0).to(tl.float32)
        gate = tl.load(source + parts, tile, other=0).to(tl.float32)
        gate += tl.load(bias + (token % M * parts)[:, None] + place, tile, other=0)
        gate = tl.where(tile, gate, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(gate, 0))
        weight = tl.exp(gate - new_peak[None, :])
        shrink = tl.exp(peak - new_peak)
        acc = acc * shrink + tl.sum(weight * value, 0)
        total = total * shrink + tl.sum(weight, 0)
        peak = new_peak
    result = acc / tl.where(total > 0, total, 1)
    tl.store(out + sum_ * D + column, result.to(out.dtype.element_ty), inside)


def window_sum(cache: Tensor, rows: Tensor, counts: Tensor, bias: Tensor, first: int) -> Tensor:
    """See the public function."""
    sums, tokens = rows.shape
    size = bias.shape[1] * len(bias) // tokens
    out = cache.new_empty((sums, size))
    columns = min(COLUMNS, power_of_two(size))
    if sums:
        _sum_window[(sums, divided_up(size, columns))](
            *(cache, rows, counts, bias, out, first),
            D=size,
            W=cache.shape[1],
            M=len(bias),
            N=tokens,
            COLUMNS=columns,
            TOKENS=min(TOKENS, power_of_two(tokens)),
            num_warps=4,
        )
    return out
