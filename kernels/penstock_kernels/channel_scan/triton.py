"""Triton kernel of channel_scan: a program takes some channels of a head of a sequence.

Their states stay in registers while it goes through the tokens, one after the other. Elements of a
state decay differently, so there is no product of matrices to make of several tokens. Loads are a
few tokens ahead of the states, which would else wait for memory at each token.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..recurrence import Runs
from ..recurrence_triton import load_state, run_of, softplus

ELEMENTS = 512  # of the states that a program has: 16 in a thread of its only warp
AHEAD = 4  # tokens: how far loads are ahead of states


@triton.jit
def _load_token(
    x, b, c, step, gate, at, strides, channel, element, live,
    D: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """x, b, c, step and gate of a token, zeros unless it is `live`."""
    of_channels, of_elements = channel < tl.where(live, D, 0), element < tl.where(live, N, 0)
    value = tl.load(x + at * strides[0] + channel, of_channels, other=0).to(tl.float32)
    taken = tl.load(b + at * strides[1] + element, of_elements, other=0).to(tl.float32)
    asked = tl.load(c + at * strides[2] + element, of_elements, other=0).to(tl.float32)
    dt = tl.load(step + at * strides[3] + channel, of_channels, other=0).to(tl.float32)
    opened = tl.load(gate + at * strides[4] + channel, of_channels, other=0).to(tl.float32)
    return value, taken, asked, dt, opened


@triton.jit
def _take(state, token, rate, bias, kept, live):
    """The state after a token as `_load_token` gives it, and its output; the same state where the
    token is not `live`."""
    value, taken, asked, step, gate = token
    dt = tl.where(live, softplus(step + bias), 0.0)
    state = state * tl.exp(rate * dt[None, :]) + taken[:, None] * (dt * value)[None, :]
    found = tl.sum(state * asked[:, None], 0) + kept * value
    return state, found * gate * tl.sigmoid(gate)


@triton.jit
def _scan(
    x, b, c, step, gate, decay_log, step_bias, skip, states,
    tables, slots, query_start, kv_len, out, strides, head_strides, table_stride,
    D: tl.constexpr, SIZE: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, AHEAD: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """`strides`: of the tokens of x, b, c, step and gate; `head_strides`: of the heads of b and c,
    whose channels are SIZE. With ONE, a row of each sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(2)
    inner = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    channel = head * SIZE + inner  # those of the next head are read, but not written
    b += head * head_strides[0]
    c += head * head_strides[1]
    element = tl.arange(0, ROWS)
    start, count, length = run_of(query_start, kv_len, sequence, ONE)
    if length == 0:
        if ONE:
            zeros = tl.zeros((CHANNELS,), out.dtype.element_ty)
            tl.store(out + start * D + channel, zeros, inner < SIZE)
        return
    if count == 0:
        return
    places, inside, state = load_state(
        states, tables, slots, sequence, table_stride, length > count, 0, element[:, None],
        channel[None, :], 1, N, D,
    )  # fmt: skip
    rate = -tl.exp(tl.load(decay_log + channel[None, :] * N + element[:, None], inside, other=0))
    bias = tl.load(step_bias + channel, channel < D, other=0)
    kept = tl.load(skip + channel, channel < D, other=0)
    loaded: tl.tuple = ()
    for i in tl.static_range(AHEAD):
        token = _load_token(
            x, b, c, step, gate, start + i, strides, channel, element, i < count, D, N
        )
        loaded = loaded + (token,)  # noqa: RUF005  (Triton knows no *)
    for first in range(0, count, AHEAD):
        following: tl.tuple = ()
        for i in tl.static_range(AHEAD):
            here, next_ = first + i, first + i + AHEAD
            state, found = _take(state, loaded[i], rate, bias, kept, here < count)
            token = _load_token(
                x, b, c, step, gate, start + next_, strides, channel, element, next_ < count, D, N
            )
            following = following + (token,)  # noqa: RUF005
            place = out + (start + here) * D + channel
            own = inner < tl.where(here < count, SIZE, 0)
            tl.store(place, found.to(out.dtype.element_ty), own)
        loaded = following
    tl.store(places, state, inside & (inner[None, :] < SIZE))


def channel_scan(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    step: Tensor,
    gate: Tensor,
    channels: tuple[Tensor, Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    if out is None:
        out = x.new_empty(x.shape)
    count, (heads, stored) = x.shape[1], b.shape[1:]
    size = count // heads
    rows = power_of_two(stored)
    columns = min(power_of_two(size), max(ELEMENTS // rows, 1))
    strides = tuple(each.stride(0) for each in (x, b, c, step, gate))
    head_strides = b.stride(1), c.stride(1)
    places = runs.block_tables, runs.slots, runs.query_start, runs.kv_len
    one = runs.query_start is None
    if len(runs.slots):
        _scan[(len(runs.slots), divided_up(size, columns), heads)](
            *(x, b, c, step, gate, *channels, states, *places, out),
            *(strides, head_strides, runs.block_tables.stride(0)),
            D=count,
            SIZE=size,
            N=stored,
            ROWS=rows,
            CHANNELS=columns,
            AHEAD=1 if one else AHEAD,
            ONE=one,
            num_warps=1,
        )
    return out
