"""Triton kernel of rg_lru: a program takes some channels of a sequence.

Their states stay in registers while it goes through the tokens, one after the other. Loads are some
tokens ahead of the states, which would else wait for memory at each token.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..recurrence import Runs
from ..recurrence_triton import run_of

CHANNELS = 32  # of a prompt that a program has: one in a thread of its only warp
WIDE = 128  # the same of a decode, whose rows are then loaded in pieces of 8 bytes
AHEAD = 8  # tokens: how far loads are ahead of states
TWICE_ROOT = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)


@triton.jit
def _load_token(
    x, gates, beside, at, strides, channel, pair, live,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x, both gates, and what is beside a token; zeros unless it is `live`."""
    inside = channel < tl.where(live, D, 0)
    gate = gates + at * 2 * D + pair
    value = tl.load(x + at * strides[0] + channel, inside, other=0).to(tl.float32)
    opened = tl.load(gate, inside, other=0).to(tl.float32)
    kept = tl.load(gate + BLOCK, inside, other=0).to(tl.float32)
    other = tl.load(beside + at * strides[1] + channel, inside, other=0).to(tl.float32)
    return value, opened, kept, other


@triton.jit
def _take(state, token, rate, open_bias, keep_bias, first, live):
    """The state after a token as `_load_token` gives it, and its output; the same state where the
    token is not `live`. `first`: whether the sequence begins with it."""
    value, opened, kept, other = token
    decay_log = tl.where(live, -rate * tl.sigmoid(kept + keep_bias), 0.0)
    scale = tl.where(first, 1.0, tl.sqrt(1.0 - tl.exp(2.0 * decay_log)))
    state = tl.exp(decay_log) * state + scale * tl.sigmoid(opened + open_bias) * value
    # GELU, by tanh(a) = 2 sigmoid(2 a) - 1.
    return state, state * other * tl.sigmoid(
        (other + 0.044715 * other * other * other) * TWICE_ROOT
    )


@triton.jit
def _scan(
    x, gates, beside, rates, biases, states,
    tables, slots, query_start, kv_len, out, strides, table_stride,
    D: tl.constexpr, BLOCK: tl.constexpr, CHANNELS: tl.constexpr,
    AHEAD: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """`strides`: of the tokens of x and beside. With ONE, a row of each sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    start, count, length = run_of(query_start, kv_len, sequence, ONE)
    if length == 0:
        if ONE:
            zeros = tl.zeros((CHANNELS,), out.dtype.element_ty)
            tl.store(out + start * D + channel, zeros, channel < D)
        return
    if count == 0:
        return
    block = tl.load(tables + tl.load(slots + sequence).to(tl.int64) * table_stride).to(tl.int64)
    places = states + block * D + channel
    begins = length == count
    state = tl.load(places, channel < tl.where(begins, 0, D), other=0)
    pair = channel // BLOCK * (2 * BLOCK) + channel % BLOCK
    rate = tl.load(rates + channel, channel < D, other=0)
    open_bias = tl.load(biases + pair, channel < D, other=0)
    keep_bias = tl.load(biases + pair + BLOCK, channel < D, other=0)
    loaded: tl.tuple = ()
    for i in tl.static_range(AHEAD):
        token = _load_token(
            x, gates, beside, start + i, strides, channel, pair, i < count, D, BLOCK
        )
        loaded = loaded + (token,)  # noqa: RUF005  (Triton knows no *)
    for at in range(0, count, AHEAD):
        following: tl.tuple = ()
        for i in tl.static_range(AHEAD):
            here, next_ = at + i, at + i + AHEAD
            first = begins & (here == 0)
            state, found = _take(state, loaded[i], rate, open_bias, keep_bias, first, here < count)
            token = _load_token(
                x, gates, beside, start + next_, strides, channel, pair, next_ < count, D, BLOCK
            )
            following = following + (token,)  # noqa: RUF005
            place = out + (start + here) * D + channel
            tl.store(place, found.to(out.dtype.element_ty), channel < tl.where(here < count, D, 0))
        loaded = following
    tl.store(places, state, channel < D)


def rg_lru(
    x: Tensor,
    gates: Tensor,
    beside: Tensor,
    channels: tuple[Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    if out is None:
        out = x.new_empty(x.shape)
    count = x.shape[1]
    one = runs.query_start is None
    columns = min(power_of_two(count), WIDE if one else CHANNELS)
    places = runs.block_tables, runs.slots, runs.query_start, runs.kv_len
    if len(runs.slots):
        _scan[(len(runs.slots), divided_up(count, columns))](
            *(x, gates, beside, *channels, states, *places, out),
            *((x.stride(0), beside.stride(0)), runs.block_tables.stride(0)),
            D=count,
            BLOCK=gates.shape[3],
            CHANNELS=columns,
            AHEAD=1 if one else AHEAD,
            ONE=one,
            num_warps=1,
        )
    return out
