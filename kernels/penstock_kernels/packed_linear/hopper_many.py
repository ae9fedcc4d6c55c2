"""Kernel of packed_linear for many rows and codes of 4 bits on Hopper GPUs, in Gluon.

Numbers are made as in `hopper`, but a tile has 128 outputs by 256 rows of x: two warp groups of 64
outputs share the rows, which come from the L2 cache half as often. Gated, one warp group has gate
outputs, the other one the up outputs that belong to them.

As many programs as there are multiprocessors take tile after tile. While one is written, the
copying warp fills the ring for the next. Outputs go through that part of the ring whose rows of x
were multiplied last, so that stores write whole lines. Tiles that are computed at a time are of few
blocks of rows, so that weights are read from memory about once.

Both warp groups are one partition of 8 warps. As two partitions they would have 168 registers
instead of 240, because the compiler takes the larger number into account for the first partition
alone, and would wait for each matrix instruction.
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

from ..device import divided_up, early_launch, processors
from ..hopper import KINDS, as_blocks, barrier, copy, make_bars, view_of
from ..online_softmax import LOG2_E
from .hopper import HALVES, TURN, copied, copy_x, table_view
from .hopper_codes import TILE, no_zero, numbers_4, pairs_of, scales_layout, words_layout
from .plan import DEPTH, RING_BYTES, Problem, many, scales_of_turn
from .weight import LINE, PackedWeight

MINUS_LOG2_E = gl.constexpr(-LOG2_E)
ROWS = gl.constexpr(256)  # of x, of a tile
GROUP = gl.constexpr(8)  # blocks of rows whose tiles are computed at a time
STAGES = gl.constexpr(3)  # turns in the ring
LINE_WORDS = gl.constexpr(LINE)


@gluon.jit
def _tile(number, sizes):
    """(first row, first block of outputs, second block) of a tile."""
    rows, _, _, _, tiles, second, step = sizes
    blocks = gl.cdiv(rows, ROWS)
    first = number // (GROUP * tiles) * GROUP
    height = gl.minimum(blocks - first, GROUP)
    inside = number % (GROUP * tiles)
    # The last block of rows begins early enough to be whole: see `hopper`.
    row = gl.maximum(gl.minimum((first + inside % height) * ROWS, rows - ROWS), 0)
    tile = inside // height * step
    return row, tile, tile + second


@gluon.jit
def _copy(
    descs, rings, bars, sizes, group,
    BITS: gl.constexpr, COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr, BYTES: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    """The copying warp."""
    words, scales, zeros, x = descs
    full, empty = bars
    _, _, inputs, count, _, _, _ = sizes
    width = gl.cdiv(inputs, TILE)  # blocks of inputs
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    done = 0
    for number in range(gl.program_id(0), count, gl.num_programs(0)):
        row, first, second = _tile(number, sizes)
        for turn in range(gl.cdiv(inputs, TURN)):
            stage = done % STAGES
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), (done // STAGES & 1) ^ 1)
            mbarrier.expect(bar, BYTES)
            group_row = turn * TURN // group if COUNT == 1 else turn * COUNT
            for part in gl.static_range(2):
                block = first if part == 0 else second
                for half in gl.static_range(HALVES):
                    line = (block * width + turn * HALVES + half) * BITS
                    target = rings[0].index((stage * HALVES + half) * 2 + part)
                    copy(words, [line, 0], bar, target)
                copy(scales, [group_row, block * TILE], bar, rings[1].index(stage * 2 + part))
                if HAS_ZEROS:
                    copy(zeros, [group_row, block * TILE], bar, rings[2].index(stage * 2 + part))
            copy_x(x, rings[3], bar, row, stage, turn)
            done += 1


@gluon.jit
def _pairs(table, half, ADDEND: gl.constexpr, dtype: gl.constexpr, COUNT: gl.constexpr):
    """Pairs of the scales or zeros of half a turn, of a table [2 * COUNT, 64]: see `pairs_of`."""
    IN_BLOCK: gl.constexpr = 1 if COUNT <= 2 else COUNT // 2
    values = table.load(scales_layout(COUNT, 8))
    if COUNT > 1:  # the other half's are not read
        halves = values.reshape([2, 2, IN_BLOCK, TILE]).permute((0, 2, 3, 1)).split()
        values = halves[half].reshape([2 * IN_BLOCK, TILE])
    values = values.to(dtype)
    if ADDEND != 0:
        values = (values.to(gl.float32) + ADDEND).to(dtype)
    values = values.reshape([2, IN_BLOCK, TILE]).permute((1, 0, 2)).reshape([IN_BLOCK, 2 * TILE])
    return pairs_of(values)


@gluon.jit
def scaled_numbers(
    rings, stage, half, dtype: gl.constexpr, KIND: gl.constexpr, BITS: gl.constexpr,
    COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Scaled numbers [128, 64] of half a turn."""
    words = rings[0].index(stage * HALVES + half).load(words_layout(BITS, 8))
    zeros = (words, words)
    if HAS_ZEROS:
        zeros = _pairs(rings[2].index(stage), half, no_zero(KIND, dtype), dtype, COUNT)
    scales = _pairs(rings[1].index(stage), half, 0, dtype, COUNT)
    IN_BLOCK: gl.constexpr = 1 if COUNT <= 2 else COUNT // 2
    return numbers_4(words, zeros, scales, KIND, dtype, IN_BLOCK, HAS_ZEROS, True, LAYOUT)


@gluon.jit
def _multiply(
    out, bias, rings, bars, sizes,
    KIND: gl.constexpr, BITS: gl.constexpr, COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr,
    HAS_BIAS: gl.constexpr, GATED: gl.constexpr,
):  # fmt: skip
    """Both warp groups: all tiles of this program."""
    full, empty = bars
    rows, outputs, inputs, count, _, _, _ = sizes
    x_ring = rings[3]
    dtype: gl.constexpr = x_ring.dtype
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, ROWS, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    done = 0
    for number in range(gl.program_id(0), count, gl.num_programs(0)):
        row, first, _ = _tile(number, sizes)
        total = gl.zeros([2 * TILE, ROWS], gl.float32, SUM)
        for turn in range(gl.cdiv(inputs, TURN)):
            stage = done % STAGES
            mbarrier.wait(full.index(stage), done // STAGES & 1)
            a = scaled_numbers(rings, stage, 0, dtype, KIND, BITS, COUNT, HAS_ZEROS, A)
            x = x_ring.index(stage * HALVES).permute((1, 0))
            total = warpgroup_mma(a, x, total, is_async=True)
            b = scaled_numbers(rings, stage, 1, dtype, KIND, BITS, COUNT, HAS_ZEROS, A)
            total = warpgroup_mma_wait(1, [total])
            if turn > 0:  # the turn before is through
                mbarrier.arrive(empty.index((done - 1) % STAGES), count=1)
            x = x_ring.index(stage * HALVES + 1).permute((1, 0))
            total = warpgroup_mma_wait(1, [warpgroup_mma(b, x, total, is_async=True)])
            done += 1
        total = warpgroup_mma_wait(0, [total])
        last = (done - 1) % STAGES
        _write(total, out, bias, x_ring, last, (row, first), (rows, outputs), HAS_BIAS, GATED)
        fence_async_shared()
        mbarrier.arrive(empty.index(last), count=1)


@gluon.jit
def _write(
    total, out, bias, ring, stage, place, sizes, HAS_BIAS: gl.constexpr, GATED: gl.constexpr
):
    """Writes a tile, by way of the rows of x of its last turn."""
    row, first = place
    rows, outputs = sizes
    SUM: gl.constexpr = total.type.layout
    kind: gl.constexpr = ring.dtype
    if HAS_BIAS:
        n = first * TILE + gl.arange(0, 2 * TILE, gl.SliceLayout(1, SUM))
        total += gl.load(bias + n, mask=n < outputs, other=0).to(gl.float32)[:, None]
    WHOLE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 2 * TILE], kind)
    barrier()  # all products that read these rows are through
    tile = as_blocks(ring, STAGES, ROWS, 2 * TILE, WHOLE).index(stage)
    tile.permute((1, 0)).store(total.to(kind))
    barrier()
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    r = gl.arange(0, ROWS, gl.SliceLayout(1, L))
    n = first * TILE + gl.arange(0, TILE, gl.SliceLayout(0, L))
    at = out + row.to(gl.int64) * outputs + (r[:, None] * outputs + n[None, :])
    inside = (r < rows - row)[:, None]
    if GATED:
        gate = ring.index(stage * HALVES).load(L).to(gl.float32)
        up = ring.index(stage * HALVES + 1).load(L).to(gl.float32)
        gate = gate / (1 + gl.exp2(gate * MINUS_LOG2_E)) * up
        gl.store(at, gate.to(kind), mask=inside)
    else:
        for part in gl.static_range(2):
            values = ring.index(stage * HALVES + part).load(L)
            keep = inside & (n + part * TILE < outputs)[None, :]
            gl.store(at + part * TILE, values, mask=keep)


@gluon.jit(do_not_specialize=["rows", "count"])
def _product(
    words, scales, zeros, x, out, bias, rows, outputs, inputs, group, count, tiles, second, step,
    KIND: gl.constexpr, BITS: gl.constexpr, COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr,
    HAS_BIAS: gl.constexpr, GATED: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    words_ring = gl.allocate_shared_memory(
        gl.int32, [STAGES * HALVES * 2, BITS, LINE_WORDS], words.layout
    )
    scales_ring = gl.allocate_shared_memory(scales.dtype, [STAGES * 2, COUNT, TILE], scales.layout)
    x_ring = gl.allocate_shared_memory(x.dtype, [STAGES * HALVES, ROWS, 64], x.layout)
    zeros_ring = scales_ring
    SCALE_BITS: gl.constexpr = scales.dtype.primitive_bitwidth
    ZERO_BITS: gl.constexpr = zeros.dtype.primitive_bitwidth if HAS_ZEROS else 0
    if HAS_ZEROS:
        zeros_ring = gl.allocate_shared_memory(zeros.dtype, [STAGES * 2, COUNT, TILE], zeros.layout)
    BYTES: gl.constexpr = (
        2 * HALVES * BITS * 512 + 2 * COUNT * TILE * (SCALE_BITS + ZERO_BITS) // 8 + ROWS * TURN * 2
    )
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
    sizes = rows, outputs, inputs, count, tiles, second, step
    descs = words, scales, zeros, x
    gl.warp_specialize(
        [
            (_multiply, (
                out, bias, rings, bars, sizes, KIND, BITS, COUNT, HAS_ZEROS, HAS_BIAS, GATED,
            )),
            (_copy, (
                descs, copied_rings, bars, sizes, group, BITS, COUNT, HAS_ZEROS, BYTES, EARLY,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip


def launch(x: Tensor, weight: PackedWeight, bias: Tensor | None, gated: bool, out: Tensor) -> bool:
    """Whether this kernel takes such tensors, and is the fastest; if so, it is launched."""
    rows, outputs = out.shape
    count, bits = scales_of_turn(weight), weight.kind.bits
    tables = [table for table in (weight.scales, weight.zeros) if table is not None]
    scale_bytes = count * TILE.value * sum(table.element_size() for table in tables)
    problem = Problem(rows, outputs, weight.inputs, gated, bits, scale_bytes)
    turn_bytes = 2 * (bits * TILE.value * DEPTH // 8 + scale_bytes) + ROWS.value * DEPTH * 2
    fits = count and STAGES.value * turn_bytes <= RING_BYTES and copied(x, weight)
    whole = not gated or outputs % TILE.value == 0
    if not fits or not whole or x.dtype not in KINDS or not many(problem, processors(x.device)):
        return False
    blocks = divided_up(outputs, TILE.value)
    tiles = blocks if gated else divided_up(blocks, 2)
    total = tiles * divided_up(rows, ROWS.value)
    early = early_launch(x.device)
    _product[(min(total, processors(x.device)),)](
        table_view(weight.words.view(-1, LINE), bits, LINE),
        table_view(tables[0], count),
        table_view(tables[-1], count),
        view_of(x, ROWS.value),
        out,
        x if bias is None else bias,
        rows,
        outputs,
        weight.inputs,
        weight.group,
        total,
        tiles,
        blocks if gated else 1,
        1 if gated else 2,
        KIND=weight.kind.value,
        BITS=bits,
        COUNT=count,
        HAS_ZEROS=weight.zeros is not None,
        HAS_BIAS=bias is not None,
        GATED=gated,
        EARLY=early,
        num_warps=8,
        maxnreg=168,
        launch_pdl=early,
    )
    return True
