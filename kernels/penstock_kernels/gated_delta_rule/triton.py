"""Triton kernel of gated_delta_rule: a program takes some value columns of a head of a sequence.

Its part of the state stays in registers while it goes through the tokens, one after the other.
`chunks.py` has the kernels of longer runs.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two, shared_bytes
from ..recurrence import Runs
from ..recurrence_triton import softplus
from .chunks import DTYPES, run_chunks
from .reference import EPS

FEW = 16  # tokens up to which going through them is not slower than a chunk, by estimate
CHUNK_BYTES = 160 << 10  # shared memory for the tiles of a chunk
ELEMENTS = 4096  # of the state that a program has; its four warps hold 32 in a thread


@triton.jit
def _step_through(
    q, k, v, strength, decay, decay_log, decay_bias, states,
    tables, slots, query_start, kv_len, out, strides, table_stride, eps,
    HEADS: tl.constexpr, SHARED: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """`strides`: of the tokens of q, k, v, strength and decay. With ONE, a row of each sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.arange(0, KEYS)
    column = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    length = tl.load(kv_len + sequence)
    start = sequence
    count = 1
    if not ONE:
        start = tl.load(query_start + sequence).to(tl.int64)
        count = tl.load(query_start + sequence + 1) - start.to(tl.int32)
    if length == 0:
        if ONE:
            zeros = tl.zeros((VALUES,), out.dtype.element_ty)
            tl.store(out + (start * HEADS + head) * E + column, zeros, column < E)
        return
    if count == 0:
        return
    block = tl.load(tables + tl.load(slots + sequence).to(tl.int64) * table_stride).to(tl.int64)
    inside = (row < D)[:, None] & (column < E)[None, :]
    places = states + (block * HEADS + head) * D * E + row[:, None] * E + column[None, :]
    begun = (row < tl.where(length > count, D, 0))[:, None]
    state = tl.load(places, inside & begun, other=0)
    rate = -tl.exp(tl.load(decay_log + head))
    bias = tl.load(decay_bias + head)
    key_head = head // SHARED
    for token in range(count):
        at = start + token
        query = tl.load(q + at * strides[0] + key_head * D + row, row < D, other=0).to(tl.float32)
        key = tl.load(k + at * strides[1] + key_head * D + row, row < D, other=0).to(tl.float32)
        value = tl.load(v + at * strides[2] + head * E + column, column < E, other=0)
        query *= tl.rsqrt(tl.sum(query * query, 0) + eps) * (1.0 / tl.sqrt(D * 1.0))
        key *= tl.rsqrt(tl.sum(key * key, 0) + eps)
        taken = tl.sigmoid(tl.load(strength + at * strides[3] + head).to(tl.float32))
        forget = tl.load(decay + at * strides[4] + head).to(tl.float32) + bias
        state *= tl.exp(rate * softplus(forget))
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
) -> Tensor:
    """See the public function."""
    if out is None:
        out = v.new_empty(v.shape)
    chunks = runs.query_start is not None and runs.max_query > FEW and q.dtype in DTYPES
    if chunks and shared_bytes(q.device) >= CHUNK_BYTES:
        gates = strength, decay, decay_log, decay_bias
        run_chunks((q, k, v), gates, states, runs, out)
        return out
    size, (heads, value_size) = q.shape[2], v.shape[1:]
    keys = power_of_two(size)
    values = min(power_of_two(value_size), max(ELEMENTS // keys, 1))
    strides = tuple(x.stride(0) for x in (q, k, v, strength, decay))
    places = runs.block_tables, runs.slots, runs.query_start, runs.kv_len
    if len(runs.slots):
        _step_through[(len(runs.slots), heads, divided_up(value_size, values))](
            *(q, k, v, strength, decay, decay_log, decay_bias, states, *places, out),
            *(strides, runs.block_tables.stride(0), EPS),
            HEADS=heads,
            SHARED=heads // q.shape[1],
            D=size,
            E=value_size,
            KEYS=keys,
            VALUES=values,
            ONE=runs.query_start is None,
            num_warps=4,
        )
    return out
