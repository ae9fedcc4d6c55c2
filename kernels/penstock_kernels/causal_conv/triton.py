"""Triton kernels of causal_conv: a program takes some channels of some tokens of a sequence.

The states are replaced by a kernel of their own after prompts: all tokens must have been computed
before. Of one token each, one kernel does both.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..recurrence import Runs

CHANNELS, TOKENS = 128, 16  # of a program


@triton.jit
def _input(x, state, at, channel, inside, x_stride, WIDTH: tl.constexpr, oldest):
    """Inputs at token `at` of a run; before 0 those of the state, the newest at -1, from `oldest`
    on."""
    new = tl.load(x + at * x_stride + channel, inside & (at >= 0), other=0)
    place = channel * (WIDTH - 1) + at + WIDTH - 1
    old = tl.load(state + place, inside & (at < 0) & (at >= oldest), other=0)
    return tl.where(at >= 0, new, old)


@triton.jit
def _sum_of_taps(
    x, weight, taps, state, token, channel, inside, x_stride, channels, each, oldest,
    WIDTH: tl.constexpr, TAPS: tl.constexpr, BEGINS: tl.constexpr,
):  # fmt: skip
    """Of tokens of a run; the state is read only where the run BEGINS. TAPS: tokens add some, of
    groups of `each` channels."""
    total = tl.zeros(inside.shape, tl.float32)
    for tap in tl.static_range(WIDTH):
        factor = tl.load(weight + channel * WIDTH + tap, channel < channels, other=0)
        if TAPS:
            own = token * (channels // each) + channel // each
            factor += tl.load(taps + own * WIDTH + tap, inside, other=0)
        at = token + (tap - WIDTH + 1)
        if BEGINS:
            value = _input(x, state, at, channel, inside, x_stride, WIDTH, oldest)
        else:
            value = tl.load(x + at * x_stride + channel, inside, other=0)
        total += value.to(tl.float32) * factor.to(tl.float32)
    return total


@triton.jit
def _finished(total, bias, channel, channels, BIAS: tl.constexpr, SILU: tl.constexpr):
    if BIAS:
        total += tl.load(bias + channel, channel < channels, other=0).to(tl.float32)
    if SILU:
        total *= tl.sigmoid(total)
    return total


@triton.jit
def _convolve(
    x, weight, bias, taps, states, tables, slots, query_start, kv_len, out,
    x_stride, table_stride, state_stride, channels, each,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, TAPS: tl.constexpr,
    C: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    start = tl.load(query_start + sequence).to(tl.int64)
    count = tl.load(query_start + sequence + 1) - start
    length = tl.load(kv_len + sequence)
    first = tl.program_id(1) * T
    if (first >= count) | (length == 0):
        return
    block = tl.load(tables + tl.load(slots + sequence).to(tl.int64) * table_stride).to(tl.int64)
    state = states + block * state_stride
    oldest = tl.where(length > count, 1 - WIDTH, 0)
    channel = (tl.program_id(2) * C + tl.arange(0, C))[None, :]
    token = (first + tl.arange(0, T))[:, None]
    inside = (channel < channels) & (token < count)
    run = x + start * x_stride
    taps += start * (channels // each) * WIDTH
    if first == 0:
        total = _sum_of_taps(
            run, weight, taps, state, token, channel, inside, x_stride, channels, each, oldest,
            WIDTH, TAPS, True,
        )  # fmt: skip
    else:
        total = _sum_of_taps(
            run, weight, taps, state, token, channel, inside, x_stride, channels, each, oldest,
            WIDTH, TAPS, False,
        )  # fmt: skip
    total = _finished(total, bias, channel, channels, BIAS, SILU)
    places = out + (start + token) * channels + channel
    tl.store(places, total.to(out.dtype.element_ty), inside)


@triton.jit
def _keep_inputs(
    x, states, tables, slots, query_start, kv_len,
    x_stride, table_stride, state_stride, channels,
    WIDTH: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    start = tl.load(query_start + sequence).to(tl.int64)
    count = tl.load(query_start + sequence + 1) - start
    length = tl.load(kv_len + sequence)
    if (count == 0) | (length == 0):
        return
    block = tl.load(tables + tl.load(slots + sequence).to(tl.int64) * table_stride).to(tl.int64)
    state = states + block * state_stride
    oldest = tl.where(length > count, 1 - WIDTH, 0)
    channel = (tl.program_id(1) * C + tl.arange(0, C))[:, None]
    place = tl.arange(0, W)[None, :]
    inside = (channel < channels) & (place < WIDTH - 1)
    at = count + place - (WIDTH - 1)
    run = x + start * x_stride
    value = _input(run, state, at, channel, inside, x_stride, WIDTH, oldest)
    tl.debug_barrier()  # all of this program's inputs are read before they are replaced
    tl.store(state + channel * (WIDTH - 1) + place, value, inside)


@triton.jit
def _convolve_one(
    x, weight, bias, taps, states, tables, slots, kv_len, out,
    x_stride, table_stride, state_stride, channels, each,
    WIDTH: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, TAPS: tl.constexpr,
    C: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    inside = channel < channels
    length = tl.load(kv_len + sequence)
    places = out + sequence * channels + channel
    if length == 0:
        tl.store(places, tl.zeros((C,), out.dtype.element_ty), inside)
        return
    block = tl.load(tables + tl.load(slots + sequence).to(tl.int64) * table_stride).to(tl.int64)
    state = states + block * state_stride
    oldest = tl.where(length > 1, 1 - WIDTH, 0)
    tap = tl.arange(0, W)[None, :]
    tile = inside[:, None] & (tap < WIDTH)
    run = x + sequence * x_stride
    at = tap - (WIDTH - 1) + tl.zeros((C, 1), tl.int32)
    value = _input(run, state, at, channel[:, None], tile, x_stride, WIDTH, oldest)
    factor = tl.load(weight + channel[:, None] * WIDTH + tap, tile, other=0)
    if TAPS:
        own = sequence * (channels // each) + channel[:, None] // each
        factor += tl.load(taps + own * WIDTH + tap, tile, other=0)
    total = tl.sum(value.to(tl.float32) * factor.to(tl.float32), 1)
    total = _finished(total, bias, channel, channels, BIAS, SILU)
    tl.store(places, total.to(out.dtype.element_ty), inside)
    tl.debug_barrier()  # all of this program's inputs are read before they are replaced
    kept = channel[:, None] * (WIDTH - 1) + tap - 1
    tl.store(state + kept, value, tile & (tap > 0))


def causal_conv(
    x: Tensor,
    weight: Tensor,
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    silu: bool = True,
    taps: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    if out is None:
        out = x.new_empty(x.shape)
    channels, width = weight.shape
    sequences, groups = len(runs.slots), divided_up(channels, CHANNELS)
    sizes = x.stride(0), runs.block_tables.stride(0), states.stride(0), channels
    places = runs.block_tables, runs.slots
    given = (weight if tensor is None else tensor for tensor in (bias, taps))
    weights = x, weight, *given, states
    options = {"WIDTH": width, "BIAS": bias is not None, "SILU": silu, "C": CHANNELS}
    options["TAPS"] = taps is not None
    each = channels if taps is None else channels // taps.shape[1]
    if runs.query_start is None:
        if sequences:
            _convolve_one[(sequences, groups)](
                *(*weights, *places, runs.kv_len, out, *sizes, each),
                **options,
                W=power_of_two(width),
                num_warps=4,
            )
        return out
    tables = *places, runs.query_start, runs.kv_len
    _convolve[(sequences, divided_up(runs.max_query, TOKENS), groups)](
        *(*weights, *tables, out, *sizes, each), **options, T=TOKENS, num_warps=4
    )
    _keep_inputs[(sequences, groups)](
        *(x, states, *tables, *sizes), WIDTH=width, C=CHANNELS, W=power_of_two(width - 1),
        num_warps=4,
    )  # fmt: skip
    return out
