"""Kernel of the grouped products of experts with many rows, of codes of 4 bits, for Hopper GPUs.

In Gluon. A tile is that of `packed_linear.hopper_many`: two warp groups of 64 outputs share rows of
x; gated, one has gates, the other one the ups that belong to them. Rows are of one expert. A tile
has 64, 128 or 256, whichever hold its rows, since the matrix units take as long for empty ones. The
order of products is the same, so a row does not depend on how many others its expert has.

As in `hopper_many`, programs take tile after tile: while one is written, the ring fills for the
next. Rows of x are put into the order of places first.
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
from ..hopper import ATOM, as_blocks, barrier, copy, make_bars, view_of
from ..hopper import ROWS as BOX
from ..packed_linear.hopper import HALVES, TURN, table_view
from ..packed_linear.hopper_codes import TILE
from ..packed_linear.hopper_many import scaled_numbers
from ..packed_linear.plan import scales_of_turn
from ..packed_linear.weight import LINE, PackedWeight
from .experts import takes_codes
from .hopper import activated
from .hopper_many import tile_at
from .plan import HOPPER_ROWS, STAGES_OF_CODES
from .sort import Side, Tiled, ordered, targets

TILE_ROWS = gl.constexpr(HOPPER_ROWS)  # rows of x of a tile
HALF, QUARTER = gl.constexpr(HOPPER_ROWS // 2), gl.constexpr(HOPPER_ROWS // 4)
STAGES = gl.constexpr(STAGES_OF_CODES)  # turns in the ring
BOXES = gl.constexpr(HOPPER_ROWS // BOX.value)  # copies of BOX rows that fill half a turn
LINE_WORDS = gl.constexpr(LINE)


@gluon.jit
def _copy(
    descs, rings, bars, tiles, sizes, group,
    BITS: gl.constexpr, SIDES: gl.constexpr, COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    """The copying warp. BYTES: of a turn's words, scales and zeros."""
    words, scales, zeros, x = descs
    full, empty = bars
    outputs, inputs, output_tiles, _, count = sizes
    width, height = gl.cdiv(inputs, TILE), gl.cdiv(SIDES * outputs, TILE)  # blocks of an expert
    done = 0
    for number in range(gl.program_id(0), count * output_tiles, gl.num_programs(0)):
        expert, row, end, tile = tile_at(number, tiles, sizes)
        rows = end - row
        boxes = gl.where(rows > HALF, BOXES, gl.where(rows > QUARTER, BOXES // 2, BOXES // 4))
        for turn in range(gl.cdiv(inputs, TURN)):
            stage = done % STAGES
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), (done // STAGES & 1) ^ 1)
            for shift in gl.static_range(3):
                live = boxes == BOXES >> shift
                mbarrier.expect(bar, BYTES + (TILE_ROWS >> shift) * TURN * 2, pred=live)
            group_row = turn * TURN // group if COUNT == 1 else turn * COUNT
            group_row += expert * (inputs // group)
            for part in gl.static_range(2):
                block = tile + part * (outputs // TILE) if SIDES == 2 else 2 * tile + part
                for half in gl.static_range(HALVES):
                    line = (expert * height + block) * width + turn * HALVES + half
                    to = rings[0].index((stage * HALVES + half) * 2 + part)
                    copy(words, [line * BITS, 0], bar, to)
                copy(scales, [group_row, block * TILE], bar, rings[1].index(stage * 2 + part))
                if HAS_ZEROS:
                    copy(zeros, [group_row, block * TILE], bar, rings[2].index(stage * 2 + part))
            for half in gl.static_range(HALVES):
                for box in range(boxes):
                    place = rings[3].index(stage * HALVES * BOXES + half * boxes + box)
                    copy(x, [row + box * BOX, turn * TURN + half * ATOM], bar, place)
            done += 1


@gluon.jit
def _multiply(
    outs, rings, bars, tiles, sizes,
    KIND: gl.constexpr, BITS: gl.constexpr, SIDES: gl.constexpr, COUNT: gl.constexpr,
    HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr, FIRST: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Both warp groups: all tiles of this program."""
    _, _, output_tiles, _, count = sizes
    done = 0
    for number in range(gl.program_id(0), count * output_tiles, gl.num_programs(0)):
        place = tile_at(number, tiles, sizes)
        rows = place[2] - place[1]
        if rows > HALF:
            done = _compute(
                outs, rings, bars, place, sizes, done, TILE_ROWS, KIND, BITS, SIDES, COUNT,
                HAS_ZEROS, HAS_BIAS, FIRST, ACTIVATION,
            )  # fmt: skip
        elif rows > QUARTER:
            done = _compute(
                outs, rings, bars, place, sizes, done, HALF, KIND, BITS, SIDES, COUNT, HAS_ZEROS,
                HAS_BIAS, FIRST, ACTIVATION,
            )  # fmt: skip
        else:
            done = _compute(
                outs, rings, bars, place, sizes, done, QUARTER, KIND, BITS, SIDES, COUNT, HAS_ZEROS,
                HAS_BIAS, FIRST, ACTIVATION,
            )  # fmt: skip


@gluon.jit
def _compute(
    outs, rings, bars, place, sizes, done, ROWS: gl.constexpr,
    KIND: gl.constexpr, BITS: gl.constexpr, SIDES: gl.constexpr, COUNT: gl.constexpr,
    HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr, FIRST: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """A tile of ROWS rows; returns the number of turns so far."""
    full, empty = bars
    inputs = sizes[1]
    PER_HALF: gl.constexpr = TILE_ROWS // ROWS
    X: gl.constexpr = rings[3].layout
    x_ring = as_blocks(rings[3], STAGES * HALVES * PER_HALF, ROWS, ATOM, X)
    dtype: gl.constexpr = x_ring.dtype
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, ROWS, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    total = gl.zeros([2 * TILE, ROWS], gl.float32, SUM)
    for turn in range(gl.cdiv(inputs, TURN)):
        stage = done % STAGES
        slot = stage * HALVES * PER_HALF
        mbarrier.wait(full.index(stage), done // STAGES & 1)
        a = scaled_numbers(rings, stage, 0, dtype, KIND, BITS, COUNT, HAS_ZEROS, A)
        total = warpgroup_mma(a, x_ring.index(slot).permute((1, 0)), total, is_async=True)
        b = scaled_numbers(rings, stage, 1, dtype, KIND, BITS, COUNT, HAS_ZEROS, A)
        total = warpgroup_mma_wait(1, [total])
        if turn > 0:  # the turn before is through
            mbarrier.arrive(empty.index((done - 1) % STAGES), count=1)
        x = x_ring.index(slot + 1).permute((1, 0))
        total = warpgroup_mma_wait(1, [warpgroup_mma(b, x, total, is_async=True)])
        done += 1
    total = warpgroup_mma_wait(0, [total])
    last = (done - 1) % STAGES
    _write(total, outs, rings[3], last, place, sizes, SIDES, HAS_BIAS, FIRST, ACTIVATION)
    fence_async_shared()
    mbarrier.arrive(empty.index(last), count=1)
    return done


@gluon.jit
def _write(
    total, outs, ring, stage, place, sizes,
    SIDES: gl.constexpr, HAS_BIAS: gl.constexpr, FIRST: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Writes a tile, by way of the rows of x of its last turn, so that stores write whole lines."""
    out, bias, order, choice_weights = outs
    expert, row, end, tile = place
    outputs = sizes[0]
    ROWS: gl.constexpr = total.shape[1]
    PER_HALF: gl.constexpr = TILE_ROWS // ROWS
    SUM: gl.constexpr = total.type.layout
    kind: gl.constexpr = ring.dtype
    first = tile * TILE if SIDES == 2 else tile * 2 * TILE
    if HAS_BIAS:
        at = gl.arange(0, 2 * TILE, gl.SliceLayout(1, SUM))
        n = first + at
        if SIDES == 2:
            n = first + at % TILE + at // TILE * outputs
        at_bias = bias + expert.to(gl.int64) * SIDES * outputs + n
        total += gl.load(at_bias, mask=n < SIDES * outputs, other=0).to(gl.float32)[:, None]
    if not FIRST:
        r = row + gl.arange(0, ROWS, gl.SliceLayout(0, SUM))
        choice = gl.load(order + r, mask=r < end, other=0)
        total *= gl.load(choice_weights + choice).to(gl.float32)[None, :]
    WHOLE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 2 * TILE], kind)
    barrier()  # all products that read these rows are through
    whole = as_blocks(ring, STAGES * PER_HALF, ROWS, 2 * TILE, WHOLE).index(stage * PER_HALF)
    whole.permute((1, 0)).store(total.to(kind))
    barrier()
    X: gl.constexpr = ring.layout
    halves = as_blocks(ring, STAGES * HALVES * PER_HALF, ROWS, TILE, X)
    slot = stage * HALVES * PER_HALF
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    r = row + gl.arange(0, ROWS, gl.SliceLayout(1, L))
    n = first + gl.arange(0, TILE, gl.SliceLayout(0, L))
    inside = (r < end)[:, None]
    if not FIRST:
        r = gl.load(order + r, mask=r < end, other=0)
    places = out + r.to(gl.int64)[:, None] * outputs + n[None, :]
    if SIDES == 2:
        gate = halves.index(slot).load(L).to(gl.float32)
        up = halves.index(slot + 1).load(L).to(gl.float32)
        values = activated(gate, up, ACTIVATION)
        gl.store(places, values.to(out.dtype.element_ty), mask=inside)
    else:
        for part in gl.static_range(2):
            values = halves.index(slot + part).load(L).to(gl.float32)
            if ACTIVATION != "":
                values = activated(values, values, ACTIVATION)
            keep = inside & (n + part * TILE < outputs)[None, :]
            gl.store(places + part * TILE, values.to(out.dtype.element_ty), mask=keep)


@gluon.jit(do_not_specialize=["most"])
def _product(
    words, scales, zeros, x, outs, tiles, most, outputs, inputs, group,
    KIND: gl.constexpr, BITS: gl.constexpr, SIDES: gl.constexpr, COUNT: gl.constexpr,
    HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr, FIRST: gl.constexpr, ACTIVATION: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    """One product of each tile of rows; `outputs` are those of one side. See `triton.product`."""
    words_ring = gl.allocate_shared_memory(
        gl.int32, [STAGES * HALVES * 2, BITS, LINE_WORDS], words.layout
    )
    scales_ring = gl.allocate_shared_memory(scales.dtype, [STAGES * 2, COUNT, TILE], scales.layout)
    x_ring = gl.allocate_shared_memory(x.dtype, [STAGES * HALVES * BOXES, BOX, ATOM], x.layout)
    zeros_ring = scales_ring
    SCALE_BITS: gl.constexpr = scales.dtype.primitive_bitwidth
    ZERO_BITS: gl.constexpr = zeros.dtype.primitive_bitwidth if HAS_ZEROS else 0
    if HAS_ZEROS:
        zeros_ring = gl.allocate_shared_memory(zeros.dtype, [STAGES * 2, COUNT, TILE], zeros.layout)
    BYTES: gl.constexpr = 2 * HALVES * BITS * 512 + 2 * COUNT * TILE * (SCALE_BITS + ZERO_BITS) // 8
    bars = make_bars(STAGES, 1)
    fence_async_shared()
    copied_rings = words_ring, scales_ring, zeros_ring, x_ring
    WORDS: gl.constexpr = words.layout
    SCALES: gl.constexpr = scales.layout
    ZEROS: gl.constexpr = zeros.layout
    rings = (
        as_blocks(words_ring, STAGES * HALVES, 2 * BITS, LINE_WORDS, WORDS),
        as_blocks(scales_ring, STAGES, 2 * COUNT, TILE, SCALES),
        as_blocks(zeros_ring, STAGES, 2 * COUNT, TILE, ZEROS),
        x_ring,
    )
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    output_tiles = gl.cdiv(SIDES * outputs, 2 * TILE)
    sizes = outputs, inputs, output_tiles, most, gl.load(tiles + 3 * most)
    gl.warp_specialize(
        [
            (_multiply, (
                outs, rings, bars, tiles, sizes, KIND, BITS, SIDES, COUNT, HAS_ZEROS, HAS_BIAS,
                FIRST, ACTIVATION,
            )),
            (_copy, (
                (words, scales, zeros, x), copied_rings, bars, tiles, sizes, group, BITS, SIDES,
                COUNT, HAS_ZEROS, BYTES,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip


def launch(tiled: Tiled, side: Side, activation: str, choice_weights: Tensor | None) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched. See `triton.product`."""
    x, weight, out = side.x, side.weight, side.out
    assert isinstance(weight, PackedWeight)
    if tiled.rows != HOPPER_ROWS or not takes_codes(weight, x.dtype):
        return False
    first = choice_weights is None
    if first:
        x = ordered(x, tiled)
    count, sides = scales_of_turn(weight), weight.outputs // out.shape[1]
    tables = [table for table in (weight.scales, weight.zeros) if table is not None]
    programs = tiled.most * divided_up(weight.outputs, 2 * TILE.value)
    _product[(min(processors(x.device), programs),)](
        table_view(weight.words.view(-1, LINE), weight.kind.bits, LINE),
        *(table_view(table.flatten(0, 1), count) for table in (tables[0], tables[-1])),
        view_of(x, BOX.value),
        targets(tiled, side, choice_weights),
        tiled.tiles,
        tiled.most,
        out.shape[1],
        weight.inputs,
        weight.group,
        KIND=weight.kind.value,
        BITS=weight.kind.bits,
        SIDES=sides,
        COUNT=count,
        HAS_ZEROS=weight.zeros is not None,
        HAS_BIAS=side.bias is not None,
        FIRST=first,
        ACTIVATION=activation,
        num_warps=8,
        maxnreg=168,
        **early_options(x.device),
    )
    return True
