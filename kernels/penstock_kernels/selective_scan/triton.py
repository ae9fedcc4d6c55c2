"""Triton kernel of selective_scan: a program takes some columns of a head of a sequence.

Its part of the state stays in registers while it goes through the tokens, one after the other.
`chunks.py` has the kernel of longer runs.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..recurrence import Runs
from ..recurrence_triton import ELEMENTS, load_state, run_of, softplus, takes_chunks
from .chunks import run_chunks


@triton.jit
def _scan(
    x, b, c, step, decay_log, step_bias, skip, states,
    tables, slots, query_start, kv_len, out, strides, table_stride, least, most,
    HEADS: tl.constexpr, SHARED: tl.constexpr, N: tl.constexpr, P: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """`strides`: of the tokens of x, b, c and step. With ONE, a row of each sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    start, count, length = run_of(query_start, kv_len, sequence, ONE)
    if length == 0:
        if ONE:
            zeros = tl.zeros((COLUMNS,), out.dtype.element_ty)
            tl.store(out + (start * HEADS + head) * P + column, zeros, column < P)
        return
    if count == 0:
        return
    places, inside, state = load_state(
        states, tables, slots, sequence, table_stride, length > count, head, row[:, None],
        column[None, :], HEADS, N, P,
    )  # fmt: skip
    rate = -tl.exp(tl.load(decay_log + head))
    bias = tl.load(step_bias + head)
    kept = tl.load(skip + head)
    group = head // SHARED
    for token in range(count):
        at = start + token
        value = tl.load(x + at * strides[0] + head * P + column, column < P, other=0)
        taken = tl.load(b + at * strides[1] + group * N + row, row < N, other=0).to(tl.float32)
        asked = tl.load(c + at * strides[2] + group * N + row, row < N, other=0).to(tl.float32)
        dt = softplus(tl.load(step + at * strides[3] + head).to(tl.float32) + bias)
        dt = tl.minimum(tl.maximum(dt, least), most)
        value = value.to(tl.float32)
        state = state * tl.exp(rate * dt) + taken[:, None] * (dt * value)[None, :]
        found = tl.sum(state * asked[:, None], 0) + kept * value
        tl.store(out + (at * HEADS + head) * P + column, found.to(out.dtype.element_ty), column < P)
    tl.store(places, state, inside)


def selective_scan(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    step: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    limits: tuple[float, float],
    out: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    if out is None:
        out = x.new_empty(x.shape)
    if takes_chunks(x, runs):
        run_chunks((x, b, c, step), heads, states, runs, limits, out)
        return out
    (_, count, size), (groups, stored) = x.shape, b.shape[1:]
    rows = power_of_two(stored)
    columns = min(power_of_two(size), max(ELEMENTS // rows, 1))
    strides = tuple(each.stride(0) for each in (x, b, c, step))
    places = runs.block_tables, runs.slots, runs.query_start, runs.kv_len
    if len(runs.slots):
        _scan[(len(runs.slots), count, divided_up(size, columns))](
            *(x, b, c, step, *heads, states, *places, out),
            *(strides, runs.block_tables.stride(0), *map(float, limits)),
            HEADS=count,
            SHARED=count // groups,
            N=stored,
            P=size,
            ROWS=rows,
            COLUMNS=columns,
            ONE=runs.query_start is None,
            num_warps=4,
        )
    return out
