"""Kernel of the grouped products of float8 experts with many rows for Hopper GPUs, in Gluon.

As `hopper_many`, but rows of x are float8, too (`round_rows`): the matrix units multiply float8
twice as fast as 16 bits, and no code is converted. Sums of 128 inputs are scaled and added up in
float32, since the matrix units add up float8 products with fewer bits than float32 has
(DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.3.2). While a warp group scales its sums,
the other one multiplies.
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
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_options, processors
from ..hopper import ROWS, as_blocks, copy, make_bars, view_of
from ..packed_linear.hopper import table_view
from ..packed_linear.weight import LINE, PackedWeight
from .hopper_many import finish, pass_turns, tile_at
from .plan import MOST_ROWS
from .round_rows import rounded, takes_float8
from .sort import Side, Tiled, targets

DEPTH = gl.constexpr(LINE)  # inputs of one turn, which share a scale of x
STAGES = gl.constexpr(6)  # turns in the ring
GROUPS = gl.constexpr(MOST_ROWS // ROWS.value)  # warp groups that multiply
WIDTH = gl.constexpr(128)  # as in `hopper_many`


@gluon.jit
def _copy(x_desc, weight_desc, scale_desc, rings, bars, tiles, sizes, group, SIDES: gl.constexpr):
    """The copying warp: all pieces of all tiles of this program."""
    x_ring, weight_ring, scales = rings
    full, empty = bars
    outputs, inputs, output_tiles, _, count = sizes
    EACH: gl.constexpr = WIDTH // SIDES
    OF_GROUP: gl.constexpr = ROWS * DEPTH
    OF_WEIGHTS: gl.constexpr = WIDTH * (DEPTH + scales.dtype.primitive_bitwidth // 8)
    done = 0
    for number in range(gl.program_id(0), count * output_tiles, gl.num_programs(0)):
        expert, row, end, tile = tile_at(number, tiles, sizes)
        first = expert * SIDES * outputs + tile * EACH
        groups = gl.cdiv(end - row, ROWS)
        for turn in range(inputs // DEPTH):
            stage = done % STAGES
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), (done // STAGES & 1) ^ 1)
            for most in gl.static_range(1, GROUPS + 1):
                mbarrier.expect(bar, most * OF_GROUP + OF_WEIGHTS, pred=groups == most)
            weights = weight_ring.index(stage)
            scale_row = expert * (inputs // group) + turn * DEPTH // group
            for side in gl.static_range(SIDES):
                target = weights.slice(side * EACH, EACH)
                copy(weight_desc, [first + side * outputs, turn * DEPTH], bar, target)
                at = side * outputs + tile * EACH
                copy(scale_desc, [scale_row, at], bar, scales.index(stage * SIDES + side))
            for part in range(groups):
                rows = x_ring.index(stage * GROUPS + part)
                copy(x_desc, [row + part * ROWS, turn * DEPTH], bar, rows)
            done += 1


@gluon.jit
def _multiply(
    outs, x_scales, rings, bars, tiles, sizes,
    GROUP: gl.constexpr, SIDES: gl.constexpr, FIRST: gl.constexpr, HAS_BIAS: gl.constexpr,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    """A warp group: multiplies its ROWS of every tile."""
    x_ring, weight_ring, scales = rings
    full, empty = bars
    _, inputs, output_tiles, _, count = sizes
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 32])
    blank = gl.zeros([ROWS, WIDTH], gl.float32, SUM)
    turns = inputs // DEPTH
    done = 0
    for number in range(gl.program_id(0), count * output_tiles, gl.num_programs(0)):
        expert, row, end, tile = tile_at(number, tiles, sizes)
        row += GROUP * ROWS
        if row < end:
            # The copy engine copies no 4-byte numbers from places that are not multiples of 4.
            at = x_scales[0] + row + gl.arange(0, ROWS, gl.SliceLayout(1, SUM))
            next_scales = gl.load(at)
            total = blank
            for turn in range(turns):
                stage = (done + turn) % STAGES
                mbarrier.wait(full.index(stage), (done + turn) // STAGES & 1)
                x = x_ring.index(stage * GROUPS + GROUP)
                weights = weight_ring.index(stage).permute((1, 0))
                part = warpgroup_mma(x, weights, blank, use_acc=False, is_async=True)
                of_rows = next_scales[:, None]
                at += gl.where(turn + 1 < turns, x_scales[1], 0)
                next_scales = gl.load(at)
                # Before the wait: loads must have arrived when the stage is free again.
                of_outputs = scales.index(stage).load(SUM).to(gl.float32)
                part = warpgroup_mma_wait(0, [part])
                mbarrier.arrive(empty.index(stage), count=1)
                total += part * (of_rows * of_outputs)
            place = expert, row, end, tile
            finish(outs, total, place, sizes, SIDES, FIRST, HAS_BIAS, ACTIVATION)
        else:
            pass_turns(bars, done, turns, STAGES)
        done += turns


@gluon.jit(do_not_specialize=["most"])
def _product(
    x_desc, x_scales, weight_desc, scale_desc, outs, tiles, most, outputs, inputs, group,
    SIDES: gl.constexpr, FIRST: gl.constexpr, HAS_BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    """One product of each tile of rows; `outputs` are those of one side. See `triton.product`."""
    kind: gl.constexpr = x_desc.dtype
    EACH: gl.constexpr = WIDTH // SIDES
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([WIDTH, DEPTH], kind)
    SCALES: gl.constexpr = scale_desc.layout
    x_ring = gl.allocate_shared_memory(kind, [STAGES * GROUPS, ROWS, DEPTH], x_desc.layout)
    weight_ring = gl.allocate_shared_memory(kind, [STAGES, WIDTH, DEPTH], WEIGHTS)
    scales = gl.allocate_shared_memory(scale_desc.dtype, [STAGES * SIDES, 1, EACH], SCALES)
    bars = make_bars(STAGES, GROUPS)
    fence_async_shared()
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    output_tiles = gl.cdiv(outputs, EACH)
    sizes = outputs, inputs, output_tiles, most, gl.load(tiles + 3 * most)
    copied = x_ring, weight_ring, scales
    rings = x_ring, weight_ring, as_blocks(scales, STAGES, 1, WIDTH, SCALES)
    gl.static_assert(GROUPS == 2)
    gl.warp_specialize(
        [
            (_multiply, (
                outs, x_scales, rings, bars, tiles, sizes, 0, SIDES, FIRST, HAS_BIAS, ACTIVATION,
            )),
            (_multiply, (
                outs, x_scales, rings, bars, tiles, sizes, 1, SIDES, FIRST, HAS_BIAS, ACTIVATION,
            )),
            (_copy, (x_desc, weight_desc, scale_desc, copied, bars, tiles, sizes, group, SIDES)),
        ],
        [4, 1],
        [232, 24],
    )  # fmt: skip


def launch(tiled: Tiled, side: Side, activation: str, choice_weights: Tensor | None) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched. See `triton.product`."""
    x, weight, out = side.x, side.weight, side.out
    assert isinstance(weight, PackedWeight)
    if tiled.rows != MOST_ROWS or not takes_float8(weight, x.dtype):
        return False
    first = choice_weights is None
    sides = weight.outputs // out.shape[1]
    each = WIDTH.value // sides
    rows = rounded(x, tiled, spread=first)
    programs = tiled.most * divided_up(out.shape[1], each)
    _product[(min(processors(x.device), programs),)](
        view_of(rows.codes, ROWS.value),
        (rows.scales, rows.scales.shape[1]),
        view_of(weight.words.flatten(0, 1).view(torch.float8_e4m3fn), each),
        table_view(weight.scales.flatten(0, 1), 1, each),
        targets(tiled, side, choice_weights),
        tiled.tiles,
        tiled.most,
        out.shape[1],
        weight.inputs,
        weight.group,
        SIDES=sides,
        FIRST=first,
        HAS_BIAS=side.bias is not None,
        ACTIVATION=activation,
        num_warps=4,
        maxnreg=168,
        **early_options(x.device),
    )
    return True
