"""Triton kernel of selective_scan for prompts: chunks of tokens, by products of matrices.

A chunk's outputs are products of its tokens, as in attention, with decays in the place of the
softmax, and of the state that enters it. A program takes some columns of a head of a sequence, and
goes through the chunks with its part of the state: chunk states need no memory. `reference.py` has
the sums.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..recurrence import Runs
from ..recurrence_triton import dot_exact, dot_wide, load_rows, load_state, run_of, since, softplus

# Tokens of a chunk, warps of a program per 128 rows of its state, and chunks whose loads are in
# flight: with chunks of 64 tokens, 255 registers of a thread do not suffice on an H100.
CHUNK, WARPS, STAGES = 32, 4, 2
STATE = 2048  # elements of the state that a program has: columns of x times rows


@triton.jit
def _run_chunks(
    x, b, c, step, decay_log, step_bias, skip, states,
    tables, slots, query_start, kv_len, out, strides, table_stride, least, most,
    HEADS: tl.constexpr, SHARED: tl.constexpr, N: tl.constexpr, P: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, L: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`strides`: of the tokens of x, b, c and step."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    start, count, length = run_of(query_start, kv_len, sequence, False)
    if (count == 0) | (length == 0):
        return
    column = (tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    row = tl.arange(0, L)
    places, mine, state = load_state(
        states, tables, slots, sequence, table_stride, length > count, head,
        tl.arange(0, ROWS)[:, None], column, HEADS, N, P,
    )  # fmt: skip
    rate = -tl.exp(tl.load(decay_log + head))
    bias = tl.load(step_bias + head)
    kept = tl.load(skip + head)
    seen = row[:, None] >= row[None, :]
    for first in tl.range(0, count, L, num_stages=STAGES):
        inside = first + row < count
        at = start + first + row
        dt = softplus(tl.load(step + at * strides[3] + head, inside, other=0).to(tl.float32) + bias)
        # Tokens outside add nothing, and nothing decays.
        dt = tl.where(inside, tl.minimum(tl.maximum(dt, least), most), 0.0)
        total = tl.cumsum(rate * dt, 0)
        taken = load_rows(b, at, strides[1], head // SHARED, inside, N, ROWS)
        asked = load_rows(c, at, strides[2], head // SHARED, inside, N, ROWS)
        live = inside[:, None] & (column < P)
        value = tl.load(x + at[:, None] * strides[0] + head * P + column, live, other=0)
        value = value.to(tl.float32)
        added = dt[:, None] * value
        scores = tl.where(seen, tl.dot(asked, tl.trans(taken)) * since(total, seen), 0.0)
        found = dot_exact(asked, state) * tl.exp(total)[:, None] + kept * value
        found += dot_wide(scores, added, taken.dtype)
        places_out = out + (at[:, None] * HEADS + head) * P + column
        tl.store(places_out, found.to(out.dtype.element_ty), live)
        whole = tl.sum(tl.where(row == L - 1, total, 0.0), 0)
        left = added * tl.exp(whole - total)[:, None]
        state = tl.exp(whole) * state + dot_exact(tl.trans(taken), left)
    tl.store(places, state, mine)


def run_chunks(
    tokens: tuple[Tensor, Tensor, Tensor, Tensor],
    heads: tuple[Tensor, Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    limits: tuple[float, float],
    out: Tensor,
) -> None:
    """Computes prompts. `tokens`: x, b, c and step."""
    x, b = tokens[:2]
    (_, count, size), (groups, stored) = x.shape, b.shape[1:]
    rows = max(power_of_two(stored), 16)
    columns = max(16, min(STATE // rows, power_of_two(size)))
    places = runs.block_tables, runs.slots, runs.query_start, runs.kv_len
    _run_chunks[(len(runs.slots), count, divided_up(size, columns))](
        *(*tokens, *heads, states, *places, out, tuple(each.stride(0) for each in tokens)),
        *(runs.block_tables.stride(0), *map(float, limits)),
        HEADS=count,
        SHARED=count // groups,
        N=stored,
        P=size,
        ROWS=rows,
        COLUMNS=columns,
        L=CHUNK,
        num_warps=WARPS * max(rows // 128, 1),
        STAGES=STAGES,
    )
