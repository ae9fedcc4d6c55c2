"""Triton kernels of gated_delta_rule for prompts: chunks of tokens, by products of matrices.

`reference.py` has the system that a chunk solves. The first kernel computes all that does not
depend on states, of all chunks at once: the inverse of the system, by substitution (powers of the
matrix would cancel where keys are alike), what tokens of a chunk see of each other, and the factors
of decay. In the second one a program takes some value columns of a head of a sequence, and goes
through the chunks with its part of the state.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..recurrence import Runs
from ..recurrence_triton import (
    dot_exact,
    dot_halves,
    halves,
    load_rows,
    load_state,
    run_of,
    since,
    softplus,
)
from .reference import EPS

# Tokens of a chunk, values' columns and warps of a program of the second kernel, and chunks whose
# loads are in flight. One prompt of 32 heads of 128 has 256 programs: two of a multiprocessor. A
# program of the first kernel has one warp: each line of the substitution adds up twice.
CHUNK, COLUMNS, WARPS, STAGES = 32, 16, 4, 2


@triton.jit
def _gates(strength, decay, decay_log, decay_bias, at, inside, strides, head, most):
    """Strengths, and the sums of g from the chunk's first token on; tokens outside add nothing."""
    taken = tl.load(strength + at * strides[3] + head, inside, other=0).to(tl.float32)
    forget = tl.load(decay + at * strides[4] + head, inside, other=0).to(tl.float32)
    rate = tl.exp(tl.load(decay_log + head))
    g = -rate * softplus(forget + tl.load(decay_bias + head))
    taken = tl.where(inside, most * tl.sigmoid(taken), 0.0)
    return taken, tl.cumsum(tl.where(inside, g, 0.0), 0)


@triton.jit
def inverse_lengths(x, eps):
    """1 / the length of each row."""
    wide = x.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, 1) + eps)


@triton.jit
def put_halves(matrix, places, plane, inside):
    high, low = halves(matrix, places.dtype.element_ty)
    tl.store(places, high, inside)
    tl.store(places + plane, low, inside)


@triton.jit
def inverse_of(system, row, L: tl.constexpr):
    """The inverse [L, L] of 1 + the transpose of `system`, whose lower triangle is 0."""
    inverse = (row[:, None] == row[None, :]).to(tl.float32)
    for line in range(1, L):
        factors = tl.sum(tl.where(row[None, :] == line, system, 0.0), 1)
        known = tl.sum(factors[:, None] * inverse, 0)
        inverse -= tl.where(row[:, None] == line, known[None, :], 0.0)
    return inverse


@triton.jit
def _prepare(
    q, k, strength, decay, decay_log, decay_bias, query_start, kv_len, matrices, factors, strides,
    tokens, eps, most,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr,
    L: tl.constexpr,
):  # fmt: skip
    """Writes what a chunk needs beside the state, see `run_chunks`."""
    sequence = tl.program_id(0)
    head = tl.program_id(2)
    start, count, length = run_of(query_start, kv_len, sequence, False)
    first = tl.program_id(1) * L
    if (first >= count) | (length == 0):
        return
    row = tl.arange(0, L)
    inside = first + row < count
    at = start + first + row
    taken, total = _gates(strength, decay, decay_log, decay_bias, at, inside, strides, head, most)
    key = load_rows(k, at, strides[1], head // SHARED, inside, D, KEYS)
    scale = inverse_lengths(key, eps)
    # Of the transposed system, so that a row of it is a column in `inverse_of`.
    later = row[:, None] < row[None, :]
    passed = tl.exp(tl.where(later, total[None, :] - total[:, None], 0.0))
    products = tl.dot(key, tl.trans(key)) * scale[:, None] * scale[None, :]
    system = tl.where(later, products * passed * taken[None, :], 0.0)
    plane = tokens.to(tl.int64) * HEADS
    at_head = at * HEADS + head
    places = matrices + at_head[:, None] * L + row[None, :]
    put_halves(inverse_of(system, row, L) * taken[None, :], places, plane * L, inside[:, None])

    query = load_rows(q, at, strides[0], head // SHARED, inside, D, KEYS)
    factor = inverse_lengths(query, eps) * (1.0 / tl.sqrt(D * 1.0))
    seen = row[:, None] >= row[None, :]
    scores = tl.dot(query, tl.trans(key)) * factor[:, None] * scale[None, :]
    scores = tl.where(seen, scores * since(total, seen), 0.0)
    put_halves(scores, places + 2 * plane * L, plane * L, inside[:, None])
    from_start = tl.exp(total)
    whole = tl.sum(tl.where(row == L - 1, total, 0.0), 0)
    tl.store(factors + at_head, from_start * scale, inside)
    tl.store(factors + plane + at_head, from_start * factor, inside)
    tl.store(factors + 2 * plane + at_head, tl.exp(whole - total) * scale, inside)
    tl.store(factors + 3 * plane + at_head, tl.exp(whole) + total * 0, inside)


@triton.jit
def _run_chunks(
    q, k, v, matrices, factors, states, tables, slots, query_start, kv_len, out, strides,
    table_stride, tokens,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, L: tl.constexpr, STAGES: tl.constexpr,
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
    plane = tokens.to(tl.int64) * HEADS
    for first in tl.range(0, count, L, num_stages=STAGES):
        inside = first + row < count
        at = start + first + row
        at_head = at * HEADS + head
        key = load_rows(k, at, strides[1], head // SHARED, inside, D, KEYS)
        query = load_rows(q, at, strides[0], head // SHARED, inside, D, KEYS)
        rows = inside[:, None] & (column < E)
        value = tl.load(v + at[:, None] * strides[2] + head * E + column, rows, other=0)
        square = matrices + at_head[:, None] * L + row[None, :]
        inverse = tl.load(square, inside[:, None], other=0)
        inverse_low = tl.load(square + plane * L, inside[:, None], other=0)
        scores = tl.load(square + 2 * plane * L, inside[:, None], other=0)
        scores_low = tl.load(square + 3 * plane * L, inside[:, None], other=0)
        knows = tl.load(factors + at_head, inside, other=0)
        reads = tl.load(factors + plane + at_head, inside, other=0)
        keeps = tl.load(factors + 2 * plane + at_head, inside, other=0)
        left = tl.load(factors + 3 * plane + (start + first) * HEADS + head)

        known = dot_exact(key, state) * knows[:, None]
        added = dot_halves(inverse, inverse_low, value.to(tl.float32) - known)
        found = dot_exact(query, state) * reads[:, None]
        found += dot_halves(scores, scores_low, added)
        tl.store(out + at_head[:, None] * E + column, found.to(out.dtype.element_ty), rows)
        state = left * state + dot_exact(tl.trans(key), added * keeps[:, None])
    tl.store(places, state, mine)


def run_chunks(
    heads: tuple[Tensor, Tensor, Tensor],
    gates: tuple[Tensor, Tensor, Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    out: Tensor,
    most: float,
) -> None:
    """Computes prompts. `heads`: q, k, v; `gates`: strength, decay, decay_log, decay_bias.

    `matrices` [4, T, heads, CHUNK]: of each token, its row of the inverse, whose columns have the
    strengths, and of what it sees of the tokens of its chunk; both as halves. `factors` [4, T,
    heads]: of what it knows and reads of the state before the chunk, of what the chunk's last state
    keeps of it, and of what is left of the state before.
    """
    q, k, v = heads
    size, (tokens, count, value_size) = q.shape[2], v.shape
    sequences, keys = len(runs.slots), max(power_of_two(size), 16)
    strides = tuple(x.stride(0) for x in (q, k, v, *gates[:2]))
    matrices = torch.empty((4, tokens, count, CHUNK), dtype=q.dtype, device=q.device)
    factors = torch.empty((4, tokens, count), dtype=torch.float32, device=q.device)
    places = runs.query_start, runs.kv_len
    shape = {"HEADS": count, "SHARED": count // q.shape[1], "D": size, "KEYS": keys, "L": CHUNK}
    _prepare[(sequences, divided_up(runs.max_query, CHUNK), count)](
        *(q, k, *gates, *places, matrices, factors, strides, tokens, EPS, most),
        **shape,
        num_warps=1,
    )
    tables = runs.block_tables, runs.slots, *places
    _run_chunks[(sequences, count, divided_up(value_size, COLUMNS))](
        *(q, k, v, matrices, factors, states, *tables, out),
        *(strides, runs.block_tables.stride(0), tokens),
        **shape,
        E=value_size,
        VALUES=COLUMNS,
        STAGES=STAGES,
        num_warps=WARPS,
    )
