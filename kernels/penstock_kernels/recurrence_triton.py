"""What the Triton kernels of recurrent layers share."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from .device import shared_bytes
from .recurrence import Runs

FEW = 16  # tokens up to which going through them is not slower than a chunk, by estimate
CHUNK_BYTES = 160 << 10  # shared memory for the tiles of a chunk
# Kernels of chunks multiply numbers of 16 bits as they are. Those of float32 are the sum of two of
# 16 bits: an output may be a small difference of large sums, where TF32 has errors as large as the
# output (of keys of 128 in the gated delta rule, on an H100).
DTYPES = (torch.bfloat16, torch.float16)
ELEMENTS = 4096  # of the state that a program of single tokens has: 32 in a thread of four warps


def takes_chunks(x: Tensor, runs: Runs) -> bool:
    """Whether runs of tokens x go through chunks, not token by token."""
    long = runs.query_start is not None and runs.max_query > FEW
    return long and x.dtype in DTYPES and shared_bytes(x.device) >= CHUNK_BYTES


@triton.jit
def softplus(x):
    """log(1 + exp(x)), which is x for a large x."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def run_of(query_start, kv_len, sequence, ONE: tl.constexpr):
    """The first row of a sequence's run, its rows, and the sequence's tokens: none of padding."""
    length = tl.load(kv_len + sequence)
    start = sequence
    count = 1
    if not ONE:
        start = tl.load(query_start + sequence).to(tl.int64)
        count = tl.load(query_start + sequence + 1) - start.to(tl.int32)
    return start, count, length


@triton.jit
def load_state(
    states, tables, slots, sequence, table_stride, begun, head, row, column,
    HEADS: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Where rows [R, 1] and columns [1, C] of the state [D, E] of a head are, which of them it has,
    and their numbers: zeros unless the sequence has `begun`."""
    block = tl.load(tables + tl.load(slots + sequence).to(tl.int64) * table_stride).to(tl.int64)
    places = states + (block * HEADS + head) * D * E + row * E + column
    inside = (row < D) & (column < E)
    return places, inside, tl.load(places, inside & (row < tl.where(begun, D, 0)), other=0)


@triton.jit
def load_rows(x, at, stride, head, inside, D: tl.constexpr, ROWS: tl.constexpr):
    """Rows [L, ROWS] of a head of D elements, of the tokens `at`; zeros where not `inside`."""
    row = tl.arange(0, ROWS)[None, :]
    return tl.load(x + at[:, None] * stride + head * D + row, inside[:, None] & (row < D), other=0)


@triton.jit
def halves(x, kind: tl.constexpr):
    """Two numbers of 16 bits, whose sum is a number of float32 without its last bits."""
    high = x.to(kind)
    return high, (x - high.to(tl.float32)).to(kind)


@triton.jit
def dot_exact(a, b):
    """a of 16 bits times b of float32."""
    high, low = halves(b, a.dtype)
    return tl.dot(a, low, tl.dot(a, high))


@triton.jit
def dot_halves(high, low, b):
    """The sum of two matrices of 16 bits, times b of float32."""
    b_high, b_low = halves(b, high.dtype)
    return tl.dot(low, b_high, tl.dot(high, b_low, tl.dot(high, b_high)))


@triton.jit
def dot_wide(a, b, kind: tl.constexpr):
    """a times b, both of float32, as halves of `kind`."""
    high, low = halves(a, kind)
    return dot_halves(high, low, b)


@triton.jit
def since(total, seen):
    """exp of the decay [L, L] from the second token to the first, where it is `seen`."""
    return tl.exp(tl.where(seen, total[:, None] - total[None, :], 0.0))
