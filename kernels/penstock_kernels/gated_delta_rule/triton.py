"""Triton kernel of gated_delta_rule: a program takes some value columns of a head of a sequence.

Its part of the state stays in registers while it goes through the tokens, one after the other.
`chunks.py` and `channel_chunks.py` have the kernels of longer runs.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..recurrence import Runs
from ..recurrence_triton import ELEMENTS, load_state, run_of, takes_chunks
from .channel_chunks import log_kept, run_channel_chunks
from .chunks import run_chunks
from .reference import EPS


@triton.jit
def _step_through(
    q, k, v, strength, decay, decay_log, decay_bias, states,
    tables, slots, query_start, kv_len, out, strides, table_stride, eps, most,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, ONE: tl.constexpr, CHANNELS: tl.constexpr,
    BOUND: tl.constexpr,
):  # fmt: skip
    """`strides`: of the tokens of q, k, v, strength and decay. With ONE, a row of each sequence;
    with CHANNELS, a decay of each channel of a key."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.arange(0, KEYS)
    column = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    start, count, length = run_of(query_start, kv_len, sequence, ONE)
    if length == 0:
        if ONE:
            zeros = tl.zeros((VALUES,), out.dtype.element_ty)
            tl.store(out + (start * HEADS + head) * E + column, zeros, column < E)
        return
    if count == 0:
        return
    places, inside, state = load_state(
        states, tables, slots, sequence, table_stride, length > count, head, row[:, None],
        column[None, :], HEADS, D, E,
    )  # fmt: skip
    rate = tl.exp(tl.load(decay_log + head))
    channel, exists = head, head < HEADS
    if CHANNELS:
        channel, exists = head * D + row, row < D
    bias = tl.load(decay_bias + channel, exists, other=0)
    key_head = head // SHARED
    for token in range(count):
        at = start + token
        query = tl.load(q + at * strides[0] + key_head * D + row, row < D, other=0).to(tl.float32)
        key = tl.load(k + at * strides[1] + key_head * D + row, row < D, other=0).to(tl.float32)
        value = tl.load(v + at * strides[2] + head * E + column, column < E, other=0)
        query *= tl.rsqrt(tl.sum(query * query, 0) + eps) * (1.0 / tl.sqrt(D * 1.0))
        key *= tl.rsqrt(tl.sum(key * key, 0) + eps)
        taken = most * tl.sigmoid(tl.load(strength + at * strides[3] + head).to(tl.float32))
        forget = tl.load(decay + at * strides[4] + channel, exists, other=0).to(tl.float32)
        kept = tl.exp(log_kept(forget + bias, rate, BOUND))
        state *= kept[:, None] if CHANNELS else kept
        known = tl.sum(state * key[:, None], 0)
        added = taken * (value.to(tl.float32) - known)
        state += key[:, None] * added[None, :]
        found = tl.sum(state * query[:, None], 0)
        tl.store(out + (at * HEADS + head) * E + column, found.to(out.dtype.element_ty), column < E)
    tl.store(places, state, inside)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    decay: Tensor,
    decay_log: Tensor,
    decay_bias: Tensor,
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
    most: float = 1.0,
    bound: float = 0.0,
) -> Tensor:
    """See the public function."""
    if out is None:
        out = v.new_empty(v.shape)
    channels = decay.dim() == 3
    if takes_chunks(q, runs):
        gates = strength, decay, decay_log, decay_bias
        if channels:
            run_channel_chunks((q, k, v), gates, states, runs, out, most, bound)
        else:
            run_chunks((q, k, v), gates, states, runs, out, most)
        return out
    size, (heads, value_size) = q.shape[2], v.shape[1:]
    keys = power_of_two(size)
    values = min(power_of_two(value_size), max(ELEMENTS // keys, 1))
    strides = tuple(x.stride(0) for x in (q, k, v, strength, decay))
    places = runs.block_tables, runs.slots, runs.query_start, runs.kv_len
    if len(runs.slots):
        _step_through[(len(runs.slots), heads, divided_up(value_size, values))](
            *(q, k, v, strength, decay, decay_log, decay_bias, states, *places, out),
            *(strides, runs.block_tables.stride(0), EPS, most),
            HEADS=heads,
            SHARED=heads // q.shape[1],
            D=size,
            E=value_size,
            KEYS=keys,
            VALUES=values,
            ONE=runs.query_start is None,
            CHANNELS=channels,
            BOUND=bound,
            num_warps=4,
        )
    return out
