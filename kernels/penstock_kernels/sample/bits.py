"""Triton: logits of a row as keys in their order, and the integers behind the random numbers."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

# Loads in flight in the passes over a row.
STAGES = tl.constexpr(4)


@triton.jit
def ordered(x):
    """Bits of float32 as uint32 in the order of the floats; both zeros are one."""
    bits = tl.where(x == 0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def row_tile(logits, at, vocabulary, TILE: tl.constexpr):
    """Logits at .. at + TILE of a row in float32; -inf beyond its end."""
    column = at + tl.arange(0, TILE)
    return tl.load(logits + column, column < vocabulary, other=float("-inf")).to(tl.float32)


@triton.jit
def splitmix(state, index):
    """See noise.splitmix; on uint64."""
    z = state + (index + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)
