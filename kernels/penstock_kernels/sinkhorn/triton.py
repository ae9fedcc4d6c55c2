"""Triton kernel of sinkhorn: a program has the matrices of some tokens in its registers."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two

ELEMENTS = 512  # of the matrices of a program: 16 in a thread of its only warp


@triton.jit
def _balance(
    logits, out, tokens, rounds, eps,
    N: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    row, column = tl.arange(0, SIZE)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    inside = (token < tokens) & (row < N) & (column < N)
    place = token.to(tl.int64) * (N * N) + row * N + column
    logit = tl.load(logits + place, inside, other=float("-inf"))
    # Rows behind the last one would else have no largest number.
    peak = tl.max(tl.where(inside, logit, -1e38), 2)
    weight = tl.where(inside, tl.exp(logit - peak[:, :, None]), 0.0)
    total = tl.sum(weight, 2)[:, :, None]
    matrix = tl.where(inside, weight / tl.where(total > 0, total, 1.0) + eps, 0.0)
    matrix = _divided(matrix, tl.sum(matrix, 1)[:, None, :] + eps)
    for _ in range(1, rounds):
        matrix = _divided(matrix, tl.sum(matrix, 2)[:, :, None] + eps)
        matrix = _divided(matrix, tl.sum(matrix, 1)[:, None, :] + eps)
    tl.store(out + place, matrix, inside)


@triton.jit
def _divided(matrix, sums):
    """The quotient; 0 where nothing adds up."""
    return matrix / tl.where(sums > 0, sums, 1.0)


def sinkhorn(logits: Tensor, rounds: int, eps: float) -> Tensor:
    """See the public function."""
    tokens, size, _ = logits.shape
    out = logits.new_empty(logits.shape)
    side = power_of_two(size)
    some = max(1, ELEMENTS // (side * side))
    if tokens:
        _balance[(divided_up(tokens, some),)](
            *(logits, out, tokens, rounds, eps), N=size, SIZE=side, TOKENS=some, num_warps=1
        )
    return out
