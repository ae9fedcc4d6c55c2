"""Kernel of the grouped products of packed experts for Hopper GPUs, in Gluon.

As in `packed_linear.hopper` one warp copies words, scales and rows of x into a ring, and a warp
group makes numbers of its words in the registers in which wgmma takes them. The copy engine copies
consecutive rows, so rows of x are put into the order of places first.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..act_mul.reference import SLOPE
from ..device import divided_up, early_options
from ..hopper import KINDS, copy, in_blocks, make_bars, view_of
from ..online_softmax import LOG2_E
from ..packed_linear.hopper import (
    HALVES,
    SCALED_SUMS,
    TURN,
    add_scaled,
    add_sums,
    copy_x,
    table_view,
)
from ..packed_linear.hopper_codes import TILE
from ..packed_linear.plan import RING_BYTES, scales_of_turn
from ..packed_linear.weight import LINE, Kind, PackedWeight
from .experts import CAP, GATE_CAP, LIMIT, SILU_LIMIT, UP_CAP
from .sort import Side, Tiled, ordered, targets

GROUP = gl.constexpr(8)  # as in `triton`
MINUS_LOG2_E = gl.constexpr(-LOG2_E)
MOST, STEEP = gl.constexpr(LIMIT), gl.constexpr(SLOPE)
SILU_MOST, CAPPED = gl.constexpr(SILU_LIMIT), gl.constexpr(CAP)
GATE_MOST, UP_MOST = gl.constexpr(GATE_CAP), gl.constexpr(UP_CAP)
TWICE_ROOT = gl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
MOST_STAGES = 4
# Four programs on a multiprocessor, whose warps wait for the numbers that they make of codes.
# MXFP4 experts of gpt-oss 20b, 8 tokens, one H100: 171 us with two programs, 149 with three, 143.
FEW_REGISTERS = 64


@gluon.jit
def _copy_weights(
    descs, rings, bar, place, stage, turn,
    BITS: gl.constexpr, SIDES: gl.constexpr, COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr,
):  # fmt: skip
    """Starts the copies of a turn's words, scales and zeros: of gates, then of ups."""
    words, scales, zeros, _ = descs
    tile, expert, _, _, shape = place
    outputs, inputs, group = shape
    group_row = turn * TURN // group if COUNT == 1 else turn * COUNT
    group_row += expert * (inputs // group)
    for part in gl.static_range(SIDES):
        at = tile + part * (outputs // SIDES // TILE)
        slot = stage * SIDES + part
        if words.dtype == gl.uint8:
            row = expert * outputs + at * TILE
            copy(words, [row, turn * TURN], bar, rings[0].index(slot))
        else:
            block = (expert * gl.cdiv(outputs, TILE) + at) * gl.cdiv(inputs, 64) + turn * HALVES
            copy(words, [block * BITS, 0], bar, rings[0].index(slot))
        copy(scales, [group_row, at * TILE], bar, rings[1].index(slot))
        if HAS_ZEROS:
            copy(zeros, [group_row, at * TILE], bar, rings[2].index(slot))


@gluon.jit
def _copy(
    descs, rings, bars, place, turns,
    BITS: gl.constexpr, SIDES: gl.constexpr, COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr,
    STAGES: gl.constexpr, BYTES: gl.constexpr, WAITS: gl.constexpr,
):  # fmt: skip
    """The copying warp. If it WAITS for the kernel that makes x, it first fills the ring with
    weights."""
    full, empty = bars
    filled = gl.minimum(turns, STAGES) if WAITS else 0
    if WAITS:
        for i in range(filled):
            mbarrier.expect(full.index(i), BYTES)
            _copy_weights(descs, rings, full.index(i), place, i, i, BITS, SIDES, COUNT, HAS_ZEROS)
        gdc_wait()
        gdc_launch_dependents()
        for i in range(filled):
            copy_x(descs[3], rings[3], full.index(i), place[2], i, i)
    for i in range(filled, turns):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), BYTES)
        _copy_weights(
            descs, rings, full.index(stage), place, stage, i, BITS, SIDES, COUNT, HAS_ZEROS
        )
        copy_x(descs[3], rings[3], full.index(stage), place[2], stage, i)


@gluon.jit
def _multiply(
    outs, rings, bars, place, turns,
    KIND: gl.constexpr, BITS: gl.constexpr, SIDES: gl.constexpr, COUNT: gl.constexpr,
    HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
    SCALED: gl.constexpr, FIRST: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """The warp group: its 64 outputs, of both sides if gated."""
    full, empty = bars
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    blank = gl.zeros([TILE, ROWS], gl.float32, SUM)
    sums = (blank, blank) if SIDES == 2 else (blank,)
    for i in range(turns):
        stage = i % STAGES
        mbarrier.wait(full.index(stage), i // STAGES & 1)
        more = ()
        for side in gl.static_range(SIDES):
            slot = stage * SIDES + side
            total = sums[side]
            if SCALED:
                total = add_scaled(
                    total, rings, empty, (stage, slot, i), side == 0, KIND, BITS, COUNT, HAS_ZEROS,
                    STAGES, A,
                )  # fmt: skip
            else:
                total = add_sums(total, rings, (stage, slot), KIND, BITS, COUNT, HAS_ZEROS, A)
            more = more + (total,)  # noqa: RUF005 (Triton unpacks no tuples)
        sums = more
        if not SCALED:
            mbarrier.arrive(empty.index(stage), count=1)
    if SCALED:
        done = ()
        for side in gl.static_range(SIDES):
            done = done + (warpgroup_mma_wait(0, [sums[side]]),)  # noqa: RUF005
        sums = done
    _finish(outs, sums, place, HAS_BIAS, FIRST, ACTIVATION)


@gluon.jit
def _sigmoid(z):
    return 1 / (1 + gl.exp2(z * MINUS_LOG2_E))


@gluon.jit
def _softcapped(x, LARGEST: gl.constexpr):
    """As `gate.softcapped`."""
    return (1 - 2 / (1 + gl.exp2(x * (-2 * MINUS_LOG2_E / LARGEST)))) * LARGEST


@gluon.jit
def activated(gate, up, ACTIVATION: gl.constexpr):
    """As in `gate`."""
    if ACTIVATION == "relu_squared":
        gate = gl.maximum(gate, 0.0)
        return gate * gate
    elif ACTIVATION == "clamped_swiglu":  # noqa: RET505
        gate = gl.minimum(gate, MOST)
        up = gl.minimum(gl.maximum(up, -MOST), MOST)
        return gate * _sigmoid(gate * STEEP) * (up + 1.0)
    elif ACTIVATION == "gelu_tanh":
        return gate * _sigmoid((gate + 0.044715 * gate * gate * gate) * TWICE_ROOT) * up
    elif ACTIVATION == "capped_silu":
        up = gl.minimum(gl.maximum(up, -CAPPED), CAPPED)
        return gl.minimum(gate * _sigmoid(gate), CAPPED) * up
    elif ACTIVATION == "softcapped_silu":
        return _softcapped(gate, GATE_MOST) * _sigmoid(gate) * _softcapped(up, UP_MOST)
    else:
        if ACTIVATION == "limited_silu":
            gate = gl.minimum(gate, SILU_MOST)
            up = gl.minimum(gl.maximum(up, -SILU_MOST), SILU_MOST)
        return gate * _sigmoid(gate) * up


@gluon.jit
def _finish(
    outs, sums, place,
    HAS_BIAS: gl.constexpr, FIRST: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Writes the outputs of the tile's rows."""
    out, bias, order, choice_weights = outs
    tile, expert, begin, end, shape = place
    SUM: gl.constexpr = sums[0].type.layout
    ROWS: gl.constexpr = sums[0].shape[1]
    SIDES: gl.constexpr = len(sums)
    outputs = shape[0] // SIDES
    n = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(1, SUM))
    row = begin + gl.arange(0, ROWS, gl.SliceLayout(0, SUM))
    total, up = sums[0], sums[SIDES - 1]
    if HAS_BIAS:
        at_bias = bias + expert.to(gl.int64) * shape[0] + n
        total += gl.load(at_bias, mask=n < outputs, other=0).to(gl.float32)[:, None]
    if SIDES == 2 and HAS_BIAS:
        up += gl.load(at_bias + outputs, mask=n < outputs, other=0).to(gl.float32)[:, None]
    if ACTIVATION != "":
        total = activated(total, up, ACTIVATION)
    keep = (n < outputs)[:, None] & (row < end)[None, :]
    if not FIRST:
        row = gl.load(order + row, mask=row < end, other=0)
        total *= gl.load(choice_weights + row).to(gl.float32)[None, :]
    places = out + row.to(gl.int64)[None, :] * outputs + n[:, None]
    gl.store(places, total.to(out.dtype.element_ty), mask=keep)


@gluon.jit(do_not_specialize=["most"])
def _product(
    words, scales, zeros, x, outs, tiles, most, outputs, inputs, group,
    KIND: gl.constexpr, BITS: gl.constexpr, SIDES: gl.constexpr, COUNT: gl.constexpr,
    HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
    SCALED: gl.constexpr, FIRST: gl.constexpr, ACTIVATION: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """One product of each tile of rows; `outputs` are those of both sides."""
    LINES: gl.constexpr = HALVES * BITS
    if KIND == "fp8":
        words_ring = gl.allocate_shared_memory(gl.uint8, [STAGES * SIDES, TILE, TURN], words.layout)
    else:
        words_ring = gl.allocate_shared_memory(gl.int32, [STAGES * SIDES, LINES, 128], words.layout)
    scales_ring = gl.allocate_shared_memory(
        scales.dtype, [STAGES * SIDES, COUNT, TILE], scales.layout
    )
    x_ring = gl.allocate_shared_memory(x.dtype, [STAGES * HALVES, ROWS, 64], x.layout)
    zeros_ring = scales_ring
    SCALE_BYTES: gl.constexpr = COUNT * TILE * scales.dtype.primitive_bitwidth // 8
    ZERO_BYTES: gl.constexpr = (
        COUNT * TILE * zeros.dtype.primitive_bitwidth // 8 if HAS_ZEROS else 0
    )
    if HAS_ZEROS:
        zeros_ring = gl.allocate_shared_memory(
            zeros.dtype, [STAGES * SIDES, COUNT, TILE], zeros.layout
        )
    BYTES: gl.constexpr = SIDES * (LINES * 512 + SCALE_BYTES + ZERO_BYTES) + ROWS * TURN * 2
    bars = make_bars(STAGES, 1)
    fence_async_shared()
    rings = words_ring, scales_ring, zeros_ring, x_ring
    if EARLY and FIRST:
        gdc_wait()
        gdc_launch_dependents()
    # What wrote the tiles has ended for the second product too: the first one waited for it before
    # it let the second one start.
    at_tile = gl.program_id(1) * GROUP + gl.program_id(0) % GROUP
    live = at_tile < gl.load(tiles + 3 * most, cache_modifier=".cg")
    expert = gl.load(tiles + at_tile, mask=live, other=0, cache_modifier=".cg")
    begin = gl.load(tiles + most + at_tile, mask=live, other=0, cache_modifier=".cg")
    end = gl.load(tiles + 2 * most + at_tile, mask=live, other=0, cache_modifier=".cg")
    turns = gl.where(live, gl.cdiv(inputs, TURN), 0)
    place = gl.program_id(0) // GROUP, expert, begin, end, (outputs, inputs, group)
    gl.warp_specialize(
        [
            (_multiply, (
                outs, rings, bars, place, turns, KIND, BITS, SIDES, COUNT, HAS_ZEROS, HAS_BIAS,
                ROWS, STAGES, SCALED, FIRST, ACTIVATION,
            )),
            (_copy, (
                (words, scales, zeros, x), rings, bars, place, turns, BITS, SIDES, COUNT,
                HAS_ZEROS, STAGES, BYTES, EARLY and not FIRST,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip


def launch(tiled: Tiled, side: Side, activation: str, choice_weights: Tensor | None) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched. See `triton.product`."""
    x, weight, out = side.x, side.weight, side.out
    assert isinstance(weight, PackedWeight)
    count = scales_of_turn(weight)
    sides = weight.outputs // out.shape[1]
    if not count or x.dtype not in KINDS or not _copied(x, weight):
        return False
    first = choice_weights is None
    if first:
        x = ordered(x, tiled)
    tables = [table for table in (weight.scales, weight.zeros) if table is not None]
    words = sides * HALVES.value * weight.kind.bits * 512
    scale_bytes = sides * count * TILE.value * sum(table.element_size() for table in tables)
    turn_bytes = words + scale_bytes + tiled.rows * TURN.value * 2
    few = tiled.rows <= SCALED_SUMS
    tiles = divided_up(out.shape[1], TILE.value)
    _product[(tiles * GROUP.value, divided_up(tiled.most, GROUP.value))](
        _words_of(weight),
        *(table_view(table.flatten(0, 1), count) for table in (tables[0], tables[-1])),
        view_of(x, tiled.rows),
        targets(tiled, side, choice_weights),
        tiled.tiles,
        tiled.most,
        weight.outputs,
        weight.inputs,
        weight.group,
        KIND=weight.kind.value,
        BITS=weight.kind.bits,
        SIDES=sides,
        COUNT=count,
        HAS_ZEROS=weight.zeros is not None,
        HAS_BIAS=side.bias is not None,
        ROWS=tiled.rows,
        STAGES=max(2, min(MOST_STAGES, RING_BYTES // turn_bytes)),
        SCALED=not few or count > 2,
        FIRST=first,
        ACTIVATION=activation,
        num_warps=4,
        maxnreg=FEW_REGISTERS if few else 240,
        **early_options(x.device),
    )
    return True


def _copied(x: Tensor, weight: PackedWeight) -> bool:
    """Whether the copy engine takes these: rows of multiples of 16 bytes."""
    tables = [weight.scales] if weight.zeros is None else [weight.scales, weight.zeros]
    return x.shape[1] % 8 == 0 and all(
        table.dtype in (*KINDS, torch.float32)
        and table.is_contiguous()
        and table.shape[-1] * table.element_size() % 16 == 0
        for table in tables
    )


def _words_of(weight: PackedWeight) -> TensorDescriptor:
    """The copy engine's view of all experts' words."""
    if weight.kind is Kind.FP8:
        return in_blocks(weight.words.flatten(0, 1), (TILE.value, TURN.value), gl.uint8)
    return table_view(weight.words.view(-1, LINE), HALVES.value * weight.kind.bits, LINE)
