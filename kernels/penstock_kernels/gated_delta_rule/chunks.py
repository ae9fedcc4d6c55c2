"""Triton kernels of gated_delta_rule for prompts: chunks of tokens, by products of matrices.

`reference.py` has the system that a chunk solves. Its inverse depends on keys and gates alone, so
the first kernel computes those of all chunks at once, by substitution; powers of the matrix would
cancel where keys are alike. In the second one a program takes some value columns of a head of a
sequence, and goes through the chunks with its part of the state.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..recurrence import Runs
from ..recurrence_triton import dot_exact, dot_wide, load_state, run_of, since, softplus
from .reference import EPS

# Tokens of a chunk, values' columns and warps of a program of the second kernel: with larger tiles,
# 255 registers of a thread do not suffice on an A100 or H100. One prompt of 32 heads of 128 has 256
# programs.
CHUNK, COLUMNS, WARPS = 32, 16, 8
# Queries and keys are multiplied as they are, and divided by their lengths afterwards.


@triton.jit
def _gates(strength, decay, decay_log, decay_bias, at, inside, strides, head):
    """Strengths, and the sums of g from the chunk's first token on; tokens outside add nothing."""
    taken = tl.load(strength + at * strides[3] + head, inside, other=0).to(tl.float32)
    forget = tl.load(decay + at * strides[4] + head, inside, other=0).to(tl.float32)
    rate = tl.exp(tl.load(decay_log + head))
    g = -rate * softplus(forget + tl.load(decay_bias + head))
    return tl.where(inside, tl.sigmoid(taken), 0.0), tl.cumsum(tl.where(inside, g, 0.0), 0)


@triton.jit
def _rows(x, at, stride, head, inside, D: tl.constexpr, KEYS: tl.constexpr, eps):
    """Queries or keys [L, KEYS] of a head, and 1 / their lengths."""
    row = tl.arange(0, KEYS)[None, :]
    places = x + at[:, None] * stride + head * D + row
    value = tl.load(places, inside[:, None] & (row < D), other=0)
    wide = value.to(tl.float32)
    return value, tl.rsqrt(tl.sum(wide * wide, 1) + eps)


@triton.jit
def _invert(
    k, strength, decay, decay_log, decay_bias, query_start, kv_len, inverses, strides, eps,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr,
    L: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(2)
    start, count, length = run_of(query_start, kv_len, sequence, False)
    first = tl.program_id(1) * L
    if (first >= count) | (length == 0):
        return
    row = tl.arange(0, L)
    inside = first + row < count
    at = start + first + row
    taken, total = _gates(strength, decay, decay_log, decay_bias, at, inside, strides, head)
    key, scale = _rows(k, at, strides[1], head // SHARED, inside, D, KEYS, eps)
    # Of the transposed system, so that a row of it is a column here.
    later = row[:, None] < row[None, :]
    passed = tl.exp(tl.where(later, total[None, :] - total[:, None], 0.0))
    products = tl.dot(key, tl.trans(key)) * scale[:, None] * scale[None, :]
    system = tl.where(later, products * passed * taken[None, :], 0.0)
    inverse = (row[:, None] == row[None, :]).to(tl.float32)
    for line in range(1, L):
        factors = tl.sum(tl.where(row[None, :] == line, system, 0.0), 1)
        known = tl.sum(factors[:, None] * inverse, 0)
        inverse -= tl.where(row[:, None] == line, known[None, :], 0.0)
    places = inverses + (at[:, None] * HEADS + head) * L + row[None, :]
    tl.store(places, inverse, inside[:, None])


@triton.jit
def _run_chunks(
    q, k, v, strength, decay, decay_log, decay_bias, states,
    tables, slots, query_start, kv_len, inverses, out, strides, table_stride, eps,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    start, count, length = run_of(query_start, kv_len, sequence, False)
    if (count == 0) | (length == 0):
        return
    column = (tl.program_id(2) * VALUES + tl.arange(0, VALUES))[None, :]
    element = tl.arange(0, KEYS)[:, None]
    row = tl.arange(0, L)
    places, mine, state = load_state(
        states, tables, slots, sequence, table_stride, length > count, head, element, column,
        HEADS, D, E,
    )  # fmt: skip
    for first in range(0, count, L):
        inside = first + row < count
        at = start + first + row
        taken, total = _gates(strength, decay, decay_log, decay_bias, at, inside, strides, head)
        key, scale = _rows(k, at, strides[1], head // SHARED, inside, D, KEYS, eps)
        rows = inside[:, None] & (column < E)
        value = tl.load(v + at[:, None] * strides[2] + head * E + column, rows, other=0)
        from_start = tl.exp(total)
        known = dot_exact(key, state) * (from_start * scale)[:, None]
        wanted = taken[:, None] * (value.to(tl.float32) - known)
        inverse = tl.load(
            inverses + (at[:, None] * HEADS + head) * L + row[None, :], inside[:, None], other=0
        )
        added = dot_wide(inverse, wanted, key.dtype)
        query, factor = _rows(q, at, strides[0], head // SHARED, inside, D, KEYS, eps)
        factor *= 1.0 / tl.sqrt(D * 1.0)
        seen = row[:, None] >= row[None, :]
        scores = tl.dot(query, tl.trans(key)) * factor[:, None] * scale[None, :]
        scores = tl.where(seen, scores * since(total, seen), 0.0)
        found = dot_exact(query, state) * (from_start * factor)[:, None]
        found += dot_wide(scores, added, key.dtype)
        places_out = out + (at[:, None] * HEADS + head) * E + column
        tl.store(places_out, found.to(out.dtype.element_ty), rows)
        whole = tl.sum(tl.where(row == L - 1, total, 0.0), 0)
        kept = added * (tl.exp(whole - total) * scale)[:, None]
        state = tl.exp(whole) * state + dot_exact(tl.trans(key), kept)
    tl.store(places, state, mine)


def run_chunks(
    heads: tuple[Tensor, Tensor, Tensor],
    gates: tuple[Tensor, Tensor, Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    out: Tensor,
) -> None:
    """Computes prompts. `heads`: q, k, v; `gates`: strength, decay, decay_log, decay_bias."""
    q, k, v = heads
    size, (tokens, count, value_size) = q.shape[2], v.shape
    sequences, keys = len(runs.slots), max(power_of_two(size), 16)
    strides = tuple(x.stride(0) for x in (q, k, v, *gates[:2]))
    inverses = torch.empty((tokens, count, CHUNK), dtype=torch.float32, device=q.device)
    places = runs.query_start, runs.kv_len
    shape = {"HEADS": count, "SHARED": count // q.shape[1], "D": size, "KEYS": keys, "L": CHUNK}
    _invert[(sequences, divided_up(runs.max_query, CHUNK), count)](
        *(k, *gates, *places, inverses, strides, EPS), **shape, num_warps=4
    )
    tables = runs.block_tables, runs.slots, *places
    _run_chunks[(sequences, count, divided_up(value_size, COLUMNS))](
        *(q, k, v, *gates, states, *tables, inverses, out),
        *(strides, runs.block_tables.stride(0), EPS),
        **shape,
        E=value_size,
        VALUES=COLUMNS,
        num_warps=WARPS,
        num_stages=1,
    )
