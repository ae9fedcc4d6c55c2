"""Kernel of the grouped products of experts with many rows for Hopper GPUs, in Gluon.

As in `linear.hopper` one warp copies rows of x and weights into a ring, and warp groups take ROWS
of the rows each; gate and up of an output are in one thread. As many programs as there are
multiprocessors take tile after tile: while one is written, the ring fills for the next.

Rows after the last group of ROWS that has any are neither copied nor multiplied. So tiles can be
high, to read weights once, and still cost little for experts with few rows.

The copy engine copies consecutive rows, so rows of x are put into the order of places first.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_options, processors
from ..hopper import ATOM, KINDS, ROWS, banded, copied, copy, in_rows, make_bars, view_of
from .hopper import activated
from .plan import HOPPER_ROWS
from .sort import Side, Tiled, ordered, targets

DEPTH = gl.constexpr(ATOM.value)  # inputs of one turn
STAGES = gl.constexpr(4)  # turns in the ring
GROUPS = gl.constexpr(HOPPER_ROWS // ROWS.value)  # warp groups that multiply
WIDTH = gl.constexpr(128)  # rows of weights of a tile: gates and ups, or of one kind
BAND = gl.constexpr(8)  # tiles of rows that are taken for each tile of outputs, for the L2 cache


@gluon.jit
def tile_at(number, tiles, sizes):
    """(expert, first row, row after the last, tile of outputs) of tile `number`."""
    _, _, output_tiles, most, count = sizes
    row_tile, tile = banded(number, count, output_tiles, BAND)
    expert = gl.load(tiles + row_tile)
    return expert, gl.load(tiles + most + row_tile), gl.load(tiles + 2 * most + row_tile), tile


@gluon.jit
def _copy(x_desc, weight_desc, rings, bars, tiles, sizes, SIDES: gl.constexpr):
    """The copying warp: all pieces of all tiles of this program."""
    x_ring, weight_ring = rings
    full, empty = bars
    outputs, inputs, output_tiles, _, count = sizes
    EACH: gl.constexpr = WIDTH // SIDES
    done = 0
    for number in range(gl.program_id(0), count * output_tiles, gl.num_programs(0)):
        expert, row, end, tile = tile_at(number, tiles, sizes)
        first = expert * SIDES * outputs + tile * EACH
        groups = gl.cdiv(end - row, ROWS)
        for at in range(0, inputs, DEPTH):
            stage = done % STAGES
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), (done // STAGES & 1) ^ 1)
            for most in gl.static_range(1, GROUPS + 1):
                mbarrier.expect(bar, (most * ROWS + WIDTH) * DEPTH * 2, pred=groups == most)
            weights = weight_ring.index(stage)
            for side in gl.static_range(SIDES):
                target = weights.slice(side * EACH, EACH)
                copy(weight_desc, [first + side * outputs, at], bar, target)
            for group in range(groups):
                rows = x_ring.index(stage * GROUPS + group)
                copy(x_desc, [row + group * ROWS, at], bar, rows)
            done += 1


@gluon.jit
def pass_turns(bars, done, turns, STAGES: gl.constexpr):
    """Frees the ring's tiles as they come: a warp group without rows multiplies nothing."""
    full, empty = bars
    for turn in range(turns):
        stage = (done + turn) % STAGES
        mbarrier.wait(full.index(stage), (done + turn) // STAGES & 1)
        mbarrier.arrive(empty.index(stage), count=1)


@gluon.jit
def _multiply(
    outs, rings, bars, tiles, sizes,
    GROUP: gl.constexpr, SIDES: gl.constexpr, FIRST: gl.constexpr, HAS_BIAS: gl.constexpr,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    """A warp group: multiplies its ROWS of every tile."""
    x_ring, weight_ring = rings
    full, empty = bars
    _, inputs, output_tiles, _, count = sizes
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    done = 0
    for number in range(gl.program_id(0), count * output_tiles, gl.num_programs(0)):
        expert, row, end, tile = tile_at(number, tiles, sizes)
        row += GROUP * ROWS
        turns = gl.cdiv(inputs, DEPTH)
        if row < end:
            total = gl.zeros([ROWS, WIDTH], gl.float32, SUM)
            for turn in range(turns):
                stage = (done + turn) % STAGES
                mbarrier.wait(full.index(stage), (done + turn) // STAGES & 1)
                x = x_ring.index(stage * GROUPS + GROUP)
                weights = weight_ring.index(stage).permute((1, 0))
                total = warpgroup_mma(x, weights, total, is_async=True)
                total = warpgroup_mma_wait(1, [total])
                if turn > 0:  # the turn before is through
                    mbarrier.arrive(empty.index((done + turn - 1) % STAGES), count=1)
            total = warpgroup_mma_wait(0, [total])
            mbarrier.arrive(empty.index((done + turns - 1) % STAGES), count=1)
            place = expert, row, end, tile
            finish(outs, total, place, sizes, SIDES, FIRST, HAS_BIAS, ACTIVATION)
        else:
            pass_turns(bars, done, turns, STAGES)
        done += turns


@gluon.jit
def finish(
    outs, total, place, sizes,
    SIDES: gl.constexpr, FIRST: gl.constexpr, HAS_BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Writes the outputs of a warp group's rows."""
    out, bias, order, choice_weights = outs
    expert, row, end, tile = place
    outputs = sizes[0]
    EACH: gl.constexpr = WIDTH // SIDES
    gate = total
    up = total
    if SIDES == 2:
        gate, up = total.reshape([ROWS, 2, EACH]).permute((0, 2, 1)).split()
    if HAS_BIAS:
        n = tile * EACH + gl.arange(0, EACH, gl.SliceLayout(0, gate.type.layout))
        at_bias = bias + expert.to(gl.int64) * SIDES * outputs + n
        gate += gl.load(at_bias, mask=n < outputs, other=0).to(gl.float32)[None, :]
        if SIDES == 2:
            up += gl.load(at_bias + outputs, mask=n < outputs, other=0).to(gl.float32)[None, :]
    if ACTIVATION != "":
        gate = activated(gate, up, ACTIVATION)
    if not FIRST:
        r = row + gl.arange(0, ROWS, gl.SliceLayout(1, gate.type.layout))
        choice = gl.load(order + r, mask=r < end, other=0)
        gate *= gl.load(choice_weights + choice).to(gl.float32)[:, None]
    values = gate.to(out.dtype.element_ty)
    if values.dtype.primitive_bitwidth == 16:
        values = in_rows(values, EACH)
    r = row + gl.arange(0, ROWS, gl.SliceLayout(1, values.type.layout))
    n = tile * EACH + gl.arange(0, EACH, gl.SliceLayout(0, values.type.layout))
    keep = (r < end)[:, None] & (n < outputs)[None, :]
    if not FIRST:
        r = gl.load(order + r, mask=r < end, other=0)
    gl.store(out + r.to(gl.int64)[:, None] * outputs + n[None, :], values, mask=keep)


@gluon.jit(do_not_specialize=["most"])
def _product(
    x_desc, weight_desc, outs, tiles, most, outputs, inputs,
    SIDES: gl.constexpr, FIRST: gl.constexpr, HAS_BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    """One product of each tile of rows; `outputs` are those of one side. See `triton.product`."""
    kind: gl.constexpr = x_desc.dtype
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([WIDTH, DEPTH], kind)
    x_ring = gl.allocate_shared_memory(kind, [STAGES * GROUPS, ROWS, DEPTH], x_desc.layout)
    weight_ring = gl.allocate_shared_memory(kind, [STAGES, WIDTH, DEPTH], WEIGHTS)
    rings = x_ring, weight_ring
    bars = make_bars(STAGES, GROUPS)
    fence_async_shared()
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    output_tiles = gl.cdiv(outputs, WIDTH // SIDES)
    sizes = outputs, inputs, output_tiles, most, gl.load(tiles + 3 * most)
    gl.static_assert(GROUPS == 4)
    gl.warp_specialize(
        [
            (_multiply, (outs, rings, bars, tiles, sizes, 0, SIDES, FIRST, HAS_BIAS, ACTIVATION)),
            (_multiply, (outs, rings, bars, tiles, sizes, 1, SIDES, FIRST, HAS_BIAS, ACTIVATION)),
            (_multiply, (outs, rings, bars, tiles, sizes, 2, SIDES, FIRST, HAS_BIAS, ACTIVATION)),
            (_multiply, (outs, rings, bars, tiles, sizes, 3, SIDES, FIRST, HAS_BIAS, ACTIVATION)),
            (_copy, (x_desc, weight_desc, rings, bars, tiles, sizes, SIDES)),
        ],
        [4, 4, 4, 1],
        [112, 112, 112, 24],
    )


def launch(tiled: Tiled, side: Side, activation: str, choice_weights: Tensor | None) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched. See `triton.product`."""
    x, weight, out = side.x, side.weight, side.out
    assert isinstance(weight, Tensor)
    first = choice_weights is None
    weights = weight.flatten(0, 1)
    if tiled.rows != HOPPER_ROWS or x.dtype not in KINDS or not copied(weights):
        return False
    if first:
        x = ordered(x, tiled)
    sides = weight.shape[1] // out.shape[1]
    programs = tiled.most * divided_up(out.shape[1], WIDTH.value // sides)
    _product[(min(processors(x.device), programs),)](
        view_of(x, ROWS.value),
        view_of(weights, WIDTH.value // sides),
        targets(tiled, side, choice_weights),
        tiled.tiles,
        tiled.most,
        out.shape[1],
        weight.shape[2],
        SIDES=sides,
        FIRST=first,
        HAS_BIAS=side.bias is not None,
        ACTIVATION=activation,
        num_warps=4,
        maxnreg=96,
        **early_options(x.device),
    )
    return True
