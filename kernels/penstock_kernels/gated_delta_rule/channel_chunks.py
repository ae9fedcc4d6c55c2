"""Triton kernels of gated_delta_rule for prompts, where each channel of a key has a decay.

As in `chunks.py`, a first kernel computes all that does not depend on states. A product of two
tokens of a chunk has a factor for each channel, exp of a difference of sums of g. A product of two
factors, exp(G[t]) exp(-G[j]), would be a matrix product, but the second one overflows where little
is left of a channel. So the kernel takes the tokens of a chunk one after the other, and subtracts
before exp.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..recurrence import Runs
from ..recurrence_triton import dot_halves, dot_wide, load_rows, load_state, run_of, softplus
from .chunks import inverse_lengths, inverse_of, put_halves
from .reference import EPS

# As in `chunks.py`, but of half as many tokens: a program also has sums of all channels of each,
# and both halves of decayed queries and keys.
CHUNK, COLUMNS, WARPS, STAGES = 16, 16, 4, 2


@triton.jit
def log_kept(forget, rate, BOUND: tl.constexpr):
    """The logarithm of what a token leaves of a state."""
    if BOUND == 0:
        return -rate * softplus(forget)
    return BOUND * tl.sigmoid(rate * forget)


@triton.jit
def _sums(
    decay, decay_log, decay_bias, at, inside, stride, head, D: tl.constexpr, KEYS: tl.constexpr,
    BOUND: tl.constexpr,
):  # fmt: skip
    """The sums [L, KEYS] of g from the chunk's first token on; tokens outside add nothing."""
    column = tl.arange(0, KEYS)
    bias = tl.load(decay_bias + head * D + column, column < D, other=0)
    forget = load_rows(decay, at, stride, head, inside, D, KEYS).to(tl.float32)
    g = log_kept(forget + bias[None, :], tl.exp(tl.load(decay_log + head)), BOUND)
    return tl.cumsum(tl.where(inside[:, None], g, 0.0), 0)


@triton.jit
def _prepare(
    q, k, strength, decay, decay_log, decay_bias, query_start, kv_len, matrices, sums, strides,
    tokens, eps, most,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr,
    L: tl.constexpr, BOUND: tl.constexpr,
):  # fmt: skip
    """Writes what a chunk needs beside the state, see `run_channel_chunks`."""
    sequence = tl.program_id(0)
    head = tl.program_id(2)
    start, count, length = run_of(query_start, kv_len, sequence, False)
    first = tl.program_id(1) * L
    if (first >= count) | (length == 0):
        return
    row = tl.arange(0, L)
    inside = first + row < count
    at = start + first + row
    total = _sums(decay, decay_log, decay_bias, at, inside, strides[4], head, D, KEYS, BOUND)
    key = load_rows(k, at, strides[1], head // SHARED, inside, D, KEYS).to(tl.float32)
    key *= inverse_lengths(key, eps)[:, None]
    query = load_rows(q, at, strides[0], head // SHARED, inside, D, KEYS).to(tl.float32)
    query *= inverse_lengths(query, eps)[:, None] * (1.0 / tl.sqrt(D * 1.0))
    taken = tl.load(strength + at * strides[3] + head, inside, other=0).to(tl.float32)
    taken = tl.where(inside, most * tl.sigmoid(taken), 0.0)

    system = tl.zeros((L, L), tl.float32)  # transposed, see `inverse_of`
    scores = tl.zeros((L, L), tl.float32)
    for token in range(L):
        mine = (row == token)[:, None]
        its_total = tl.sum(tl.where(mine, total, 0.0), 0)[None, :]
        its_key = tl.sum(tl.where(mine, key, 0.0), 0)[None, :]
        # Above 0 for tokens before it only, which do not see it.
        left = its_key * tl.exp(tl.minimum(total - its_total, 0.0))
        known = tl.where(row > token, tl.sum(key * left, 1) * taken, 0.0)
        seen = tl.where(row >= token, tl.sum(query * left, 1), 0.0)
        system = tl.where(mine, known[None, :], system)
        scores = tl.where((row == token)[None, :], seen[:, None], scores)

    plane = tokens.to(tl.int64) * HEADS
    at_head = at * HEADS + head
    places = matrices + at_head[:, None] * L + row[None, :]
    put_halves(inverse_of(system, row, L) * taken[None, :], places, plane * L, inside[:, None])
    put_halves(scores, places + 2 * plane * L, plane * L, inside[:, None])
    column = tl.arange(0, KEYS)[None, :]
    tl.store(sums + at_head[:, None] * D + column, total, inside[:, None] & (column < D))


@triton.jit
def _run_chunks(
    q, k, v, matrices, sums, states, tables, slots, query_start, kv_len, out, strides,
    table_stride, tokens, eps,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, L: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    start, count, length = run_of(query_start, kv_len, sequence, False)
    if (count == 0) | (length == 0):
        return
    column = (tl.program_id(2) * VALUES + tl.arange(0, VALUES))[None, :]
    element = tl.arange(0, KEYS)
    row = tl.arange(0, L)
    kind: tl.constexpr = q.dtype.element_ty
    places, mine, state = load_state(
        states, tables, slots, sequence, table_stride, length > count, head, element[:, None],
        column, HEADS, D, E,
    )  # fmt: skip
    plane = tokens.to(tl.int64) * HEADS
    for first in tl.range(0, count, L, num_stages=STAGES):
        inside = first + row < count
        at = start + first + row
        at_head = at * HEADS + head
        key = load_rows(k, at, strides[1], head // SHARED, inside, D, KEYS)
        query = load_rows(q, at, strides[0], head // SHARED, inside, D, KEYS)
        total = load_rows(sums, at, HEADS * D, head, inside, D, KEYS)
        end = (start + tl.minimum(first + L, count) - 1) * HEADS + head
        whole = tl.load(sums + end * D + element, element < D, other=0)
        rows = inside[:, None] & (column < E)
        value = tl.load(v + at[:, None] * strides[2] + head * E + column, rows, other=0)
        square = matrices + at_head[:, None] * L + row[None, :]
        inverse = tl.load(square, inside[:, None], other=0)
        inverse_low = tl.load(square + plane * L, inside[:, None], other=0)
        scores = tl.load(square + 2 * plane * L, inside[:, None], other=0)
        scores_low = tl.load(square + 3 * plane * L, inside[:, None], other=0)

        left = tl.exp(total)
        wide = key.to(tl.float32) * inverse_lengths(key, eps)[:, None]
        known = dot_wide(wide * left, state, kind)
        added = dot_halves(inverse, inverse_low, value.to(tl.float32) - known)
        factor = inverse_lengths(query, eps) * (1.0 / tl.sqrt(D * 1.0))
        found = dot_wide(query.to(tl.float32) * left * factor[:, None], state, kind)
        found += dot_halves(scores, scores_low, added)
        tl.store(out + at_head[:, None] * E + column, found.to(out.dtype.element_ty), rows)
        kept = wide * tl.exp(whole[None, :] - total)
        state = tl.exp(whole)[:, None] * state + dot_wide(tl.trans(kept), added, kind)
    tl.store(places, state, mine)


def run_channel_chunks(
    heads: tuple[Tensor, Tensor, Tensor],
    gates: tuple[Tensor, Tensor, Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    out: Tensor,
    most: float,
    bound: float,
) -> None:
    """Computes prompts, as `run_chunks`.

    `matrices` [4, T, heads, CHUNK] are the same. `sums` [T, heads, D]: of g of each channel, from
    the first token of a token's chunk on.
    """
    q, k, v = heads
    size, (tokens, count, value_size) = q.shape[2], v.shape
    sequences, keys = len(runs.slots), max(power_of_two(size), 16)
    strides = tuple(x.stride(0) for x in (q, k, v, *gates[:2]))
    matrices = torch.empty((4, tokens, count, CHUNK), dtype=q.dtype, device=q.device)
    sums = torch.empty((tokens, count, size), dtype=torch.float32, device=q.device)
    places = runs.query_start, runs.kv_len
    shape = {"HEADS": count, "SHARED": count // q.shape[1], "D": size, "KEYS": keys, "L": CHUNK}
    _prepare[(sequences, divided_up(runs.max_query, CHUNK), count)](
        *(q, k, *gates, *places, matrices, sums, strides, tokens, EPS, most),
        **shape,
        BOUND=bound,
        num_warps=4,
    )
    tables = runs.block_tables, runs.slots, *places
    _run_chunks[(sequences, count, divided_up(value_size, COLUMNS))](
        *(q, k, v, matrices, sums, states, *tables, out),
        *(strides, runs.block_tables.stride(0), tokens, EPS),
        **shape,
        E=value_size,
        VALUES=COLUMNS,
        STAGES=STAGES,
        num_warps=WARPS,
    )
