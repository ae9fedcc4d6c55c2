"""Kernel of packed_linear for Hopper GPUs, in Gluon: copy engine, wgmma with weights in registers.

A program multiplies 64 outputs, or 128 of two warp groups, by up to 256 rows of x. One warp copies
words, scales and x into a ring. A warp group makes numbers of its words in the registers in which
wgmma takes them (see `hopper_codes`), so that no number goes through memory, and the products of
one block run while the next is made. The product is transposed, as in `linear.skinny`: outputs fill
the 64 rows of the instruction.

With few rows, each group of inputs has a sum of its own, which is scaled in float32. With many
that would need twice the registers, so numbers are scaled before they are multiplied.

The kernel may start while the one that makes x still runs (see `pdl`): weights are constants.
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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import arrivals, divided_up, early_launch, processors
from ..hopper import KINDS, barrier, copy, in_blocks, make_bars, view_of
from ..online_softmax import LOG2_E
from .hopper_codes import (
    TILE,
    float8_layout,
    halves_of_float8,
    no_zero,
    numbers_4,
    numbers_8,
    numbers_of_float8,
    pairs_of,
    scales_layout,
    words_layout,
)
from .plan import COUNTERS, DEPTH, Problem, plan, scales_of_turn
from .weight import LINE, Kind, PackedWeight

MINUS_LOG2_E = gl.constexpr(-LOG2_E)
TURN = gl.constexpr(DEPTH)
HALVES = gl.constexpr(DEPTH // 64)  # blocks of a turn
SCALED_SUMS = 64  # rows up to which sums, not numbers, are scaled


@gluon.jit
def _copy_weights(
    descs, rings, bar, place, stage, turn,
    BITS: gl.constexpr, PARTS: gl.constexpr, WARP_GROUPS: gl.constexpr, COUNT: gl.constexpr,
    HAS_ZEROS: gl.constexpr,
):  # fmt: skip
    """Starts the copies of a turn's words, scales and zeros: of gate, then of up outputs."""
    words, scales, zeros, _ = descs
    tile, _, _, _, blocks, group, side = place
    group_row = turn * TURN // group if COUNT == 1 else turn * COUNT
    for part in gl.static_range(PARTS):
        at = tile + part % WARP_GROUPS + part // WARP_GROUPS * side
        slot = stage * PARTS + part
        if words.dtype == gl.uint8:
            copy(words, [at * TILE, turn * TURN], bar, rings[0].index(slot))
        else:
            copy(words, [(at * blocks + turn * HALVES) * BITS, 0], bar, rings[0].index(slot))
        copy(scales, [group_row, at * TILE], bar, rings[1].index(slot))
        if HAS_ZEROS:
            copy(zeros, [group_row, at * TILE], bar, rings[2].index(slot))


@gluon.jit
def copy_x(x, ring, bar, row, stage, turn):
    for half in gl.static_range(HALVES):
        copy(x, [row, turn * TURN + half * 64], bar, ring.index(stage * HALVES + half))


@gluon.jit
def _copy(
    descs, rings, bars, place,
    BITS: gl.constexpr, PARTS: gl.constexpr, WARP_GROUPS: gl.constexpr, COUNT: gl.constexpr,
    HAS_ZEROS: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, BYTES: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    """The copying warp. Before it may read x, it fills the ring with weights."""
    full, empty = bars
    _, begin, turns, row, _, _, _ = place
    first = gl.minimum(turns, STAGES)
    for i in range(first):
        mbarrier.expect(full.index(i), BYTES)
        _copy_weights(
            descs, rings, full.index(i), place, i, begin + i,
            BITS, PARTS, WARP_GROUPS, COUNT, HAS_ZEROS,
        )  # fmt: skip
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    for i in range(first):
        copy_x(descs[3], rings[3], full.index(i), row, i, begin + i)
    for i in range(first, turns):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), BYTES)
        _copy_weights(
            descs, rings, full.index(stage), place, stage, begin + i,
            BITS, PARTS, WARP_GROUPS, COUNT, HAS_ZEROS,
        )  # fmt: skip
        copy_x(descs[3], rings[3], full.index(stage), row, stage, begin + i)


@gluon.jit
def _pairs(ring, slot, half, ADDEND: gl.constexpr, dtype: gl.constexpr, COUNT: gl.constexpr):
    """Pairs of the scales or zeros of one block of a turn."""
    IN_BLOCK: gl.constexpr = 1 if COUNT <= 2 else COUNT // 2
    FIRST: gl.constexpr = 0 if COUNT == 1 else half * IN_BLOCK
    rows = ring.index(slot).slice(FIRST, IN_BLOCK)
    values = rows.load(scales_layout(IN_BLOCK)).to(dtype)
    return pairs_of((values.to(gl.float32) + ADDEND).to(dtype) if ADDEND != 0 else values)


@gluon.jit
def _numbers(
    rings, slot, half, dtype: gl.constexpr, KIND: gl.constexpr, BITS: gl.constexpr,
    COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr, SCALED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Numbers [64, 64] of one block of a turn, scaled or not."""
    if KIND == "fp8":
        # The other half is read twice by what is written here, once by what is compiled.
        codes = halves_of_float8(rings[0].index(slot).load(float8_layout()))[half]
        scale = rings[1].index(slot).slice(half * (COUNT - 1), 1).load(scales_layout(1))
        return numbers_of_float8(codes, scale.to(dtype).reshape([TILE]), dtype, SCALED, LAYOUT)
    else:  # noqa: RET505
        words = rings[0].index(slot).slice(half * BITS, BITS).load(words_layout(BITS))
        zeros, scales = (words, words), (words, words)
        if HAS_ZEROS:
            zeros = _pairs(rings[2], slot, half, no_zero(KIND, dtype), dtype, COUNT)
        if SCALED:
            scales = _pairs(rings[1], slot, half, 0, dtype, COUNT)
        if BITS == 4:
            IN_BLOCK: gl.constexpr = 1 if COUNT <= 2 else COUNT // 2
            return numbers_4(words, zeros, scales, KIND, dtype, IN_BLOCK, HAS_ZEROS, SCALED, LAYOUT)
        else:  # noqa: RET505
            return numbers_8(words, zeros, scales, KIND, dtype, HAS_ZEROS, SCALED, LAYOUT)


@gluon.jit
def _scale(scales, at, LAYOUT: gl.constexpr):
    """Scales of one group of a turn's inputs, [64, 1] float32."""
    L: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    if scales.shape[0] == 1:
        one = scales.reshape([TILE]).load(L)
    else:
        one = scales.slice(at, 1).load(scales_layout(1)).reshape([TILE])
        one = gl.convert_layout(one, L)
    return one.to(gl.float32)[:, None]


@gluon.jit
def add_sums(
    total, rings, at, KIND: gl.constexpr, BITS: gl.constexpr, COUNT: gl.constexpr,
    HAS_ZEROS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The total with the products of a turn, each group's sum scaled in float32."""
    stage, slot = at
    dtype: gl.constexpr = rings[3].dtype
    SUM: gl.constexpr = total.type.layout
    blank = gl.zeros([TILE, total.shape[1]], gl.float32, SUM)
    a = _numbers(rings, slot, 0, dtype, KIND, BITS, COUNT, HAS_ZEROS, False, LAYOUT)
    x = rings[3].index(stage * HALVES).permute((1, 0))
    group = warpgroup_mma(a, x, blank, use_acc=False, is_async=True)
    b = _numbers(rings, slot, 1, dtype, KIND, BITS, COUNT, HAS_ZEROS, False, LAYOUT)
    x = rings[3].index(stage * HALVES + 1).permute((1, 0))
    scales = rings[1].index(slot)
    scale = _scale(scales, 0, SUM)
    if COUNT == 2:
        second = warpgroup_mma(b, x, blank, use_acc=False, is_async=True)
        second_scale = _scale(scales, 1, SUM)
        group, second = warpgroup_mma_wait(0, [group, second])
        total += group * scale
        return total + second * second_scale
    else:  # noqa: RET505
        group = warpgroup_mma_wait(0, [warpgroup_mma(b, x, group, is_async=True)])
        return total + group * scale


@gluon.jit
def add_scaled(
    total, rings, empty, at, release: gl.constexpr, KIND: gl.constexpr, BITS: gl.constexpr,
    COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr, STAGES: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """The total to which the products of a turn, of scaled numbers, are yet being added.

    `release` gives the ring back what the turn before had, once its products are through.
    """
    stage, slot, turn = at
    dtype: gl.constexpr = rings[3].dtype
    a = _numbers(rings, slot, 0, dtype, KIND, BITS, COUNT, HAS_ZEROS, True, LAYOUT)
    total = warpgroup_mma(a, rings[3].index(stage * HALVES).permute((1, 0)), total, is_async=True)
    b = _numbers(rings, slot, 1, dtype, KIND, BITS, COUNT, HAS_ZEROS, True, LAYOUT)
    total = warpgroup_mma_wait(1, [total])
    if release:  # noqa: SIM102 (known when it is compiled)
        if turn > 0:
            mbarrier.arrive(empty.index((turn - 1) % STAGES), count=1)
    x = rings[3].index(stage * HALVES + 1).permute((1, 0))
    return warpgroup_mma_wait(1, [warpgroup_mma(b, x, total, is_async=True)])


@gluon.jit
def _multiply(
    outs, rings, bars, place, sizes,
    KIND: gl.constexpr, BITS: gl.constexpr, SIDES: gl.constexpr, WARP_GROUPS: gl.constexpr,
    COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr, ROWS: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, SCALED: gl.constexpr, OWN: gl.constexpr,
):  # fmt: skip
    """Warp group OWN: its 64 outputs, of both sides if gated."""
    full, empty = bars
    tile, _, turns, row, _, _, _ = place
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    blank = gl.zeros([TILE, ROWS], gl.float32, SUM)
    sums = (blank, blank) if SIDES == 2 else (blank,)
    for i in range(turns):
        stage = i % STAGES
        mbarrier.wait(full.index(stage), i // STAGES & 1)
        more = ()
        for side in gl.static_range(SIDES):
            slot = (stage * SIDES + side) * WARP_GROUPS + OWN
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
    _finish(
        outs, sums, tile + OWN, row, sizes, HAS_BIAS, SPLITS, gl.program_id(0) * WARP_GROUPS + OWN
    )


@gluon.jit
def _finish(
    outs, sums, tile, row, sizes, HAS_BIAS: gl.constexpr, SPLITS: gl.constexpr, counter
):  # fmt: skip
    """Writes outputs; of those that several programs share, the one that comes last."""
    out, bias, partial, arrived = outs
    rows, outputs = sizes
    SUM: gl.constexpr = sums[0].type.layout
    ROWS: gl.constexpr = sums[0].shape[1]
    n = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(1, SUM))
    r = gl.arange(0, ROWS, gl.SliceLayout(0, SUM))
    keep = (n < outputs)[:, None] & (r < rows - row)[None, :]
    # Offsets of 32 bits from the first row: a thread has up to 128 of them.
    at = r[None, :] * outputs + n[:, None]
    first = row.to(gl.int64) * outputs
    total = sums[0]
    if len(sums) == 2:
        total = total / (1 + gl.exp2(total * MINUS_LOG2_E)) * sums[1]
    if SPLITS > 1:
        plane = rows.to(gl.int64) * outputs
        gl.store(partial + (gl.program_id(1) * plane + first) + at, total, mask=keep)
        barrier()  # all of the part is written before it is announced
        counter += gl.program_id(2) * gl.num_programs(0) * 2
        last = gl.atomic_add(arrived + counter, 1, sem="acq_rel") == SPLITS - 1
        if last:
            gl.store(arrived + counter, 0)  # for the next launch
            total = gl.zeros([TILE, ROWS], gl.float32, SUM)
            for split in range(SPLITS):
                parts = partial + (split * plane + first) + at
                total += gl.load(parts, mask=keep, other=0, cache_modifier=".cg")
        keep = keep & (r < gl.where(last, ROWS, 0))[None, :]
    if HAS_BIAS:
        total += gl.load(bias + n, mask=n < outputs, other=0).to(gl.float32)[:, None]
    gl.store(out + first + at, total.to(out.dtype.element_ty), mask=keep)


@gluon.jit(do_not_specialize=["rows"])
def _product(
    words, scales, zeros, x, outs, rows, outputs, inputs, group, span,
    KIND: gl.constexpr, BITS: gl.constexpr, SIDES: gl.constexpr, WARP_GROUPS: gl.constexpr,
    COUNT: gl.constexpr, HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr, ROWS: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, SCALED: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    PARTS: gl.constexpr = SIDES * WARP_GROUPS
    LINES: gl.constexpr = HALVES * BITS
    if KIND == "fp8":
        words_ring = gl.allocate_shared_memory(gl.uint8, [STAGES * PARTS, TILE, TURN], words.layout)
    else:
        words_ring = gl.allocate_shared_memory(gl.int32, [STAGES * PARTS, LINES, 128], words.layout)
    scales_ring = gl.allocate_shared_memory(
        scales.dtype, [STAGES * PARTS, COUNT, TILE], scales.layout
    )
    x_ring = gl.allocate_shared_memory(x.dtype, [STAGES * HALVES, ROWS, 64], x.layout)
    zeros_ring = scales_ring
    SCALE_BYTES: gl.constexpr = COUNT * TILE * scales.dtype.primitive_bitwidth // 8
    ZERO_BYTES: gl.constexpr = (
        COUNT * TILE * zeros.dtype.primitive_bitwidth // 8 if HAS_ZEROS else 0
    )
    if HAS_ZEROS:
        zeros_ring = gl.allocate_shared_memory(
            zeros.dtype, [STAGES * PARTS, COUNT, TILE], zeros.layout
        )
    BYTES: gl.constexpr = PARTS * (LINES * 512 + SCALE_BYTES + ZERO_BYTES) + ROWS * TURN * 2
    bars = make_bars(STAGES, WARP_GROUPS)
    fence_async_shared()
    rings = words_ring, scales_ring, zeros_ring, x_ring
    begin = gl.program_id(1) * span
    turns = gl.minimum(span, gl.cdiv(inputs, TURN) - begin)
    # The last tile begins early enough to be whole, and computes some rows once more: the copy
    # engine takes several times as long for rows past the end of x as for others.
    first_row = gl.maximum(gl.minimum(gl.program_id(2) * ROWS, rows - ROWS), 0)
    place = (
        gl.program_id(0) * WARP_GROUPS, begin, turns, first_row,
        gl.cdiv(inputs, TILE), group, outputs // TILE,
    )  # fmt: skip
    sizes = rows, outputs
    weights = words, scales, zeros, x
    if WARP_GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (
                    outs, rings, bars, place, sizes, KIND, BITS, SIDES, WARP_GROUPS, COUNT,
                    HAS_ZEROS, HAS_BIAS, ROWS, STAGES, SPLITS, SCALED, 0,
                )),
                (_copy, (
                    weights, rings, bars, place, BITS, PARTS, WARP_GROUPS, COUNT, HAS_ZEROS, ROWS,
                    STAGES, BYTES, EARLY,
                )),
            ],
            [1],
            [24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (
                    outs, rings, bars, place, sizes, KIND, BITS, SIDES, WARP_GROUPS, COUNT,
                    HAS_ZEROS, HAS_BIAS, ROWS, STAGES, SPLITS, SCALED, 0,
                )),
                (_multiply, (
                    outs, rings, bars, place, sizes, KIND, BITS, SIDES, WARP_GROUPS, COUNT,
                    HAS_ZEROS, HAS_BIAS, ROWS, STAGES, SPLITS, SCALED, 1,
                )),
                (_copy, (
                    weights, rings, bars, place, BITS, PARTS, WARP_GROUPS, COUNT, HAS_ZEROS, ROWS,
                    STAGES, BYTES, EARLY,
                )),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


def launch(x: Tensor, weight: PackedWeight, bias: Tensor | None, gated: bool, out: Tensor) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched."""
    count = scales_of_turn(weight)
    tiled = not gated or out.shape[1] % TILE.value == 0
    if not count or not tiled or x.dtype not in KINDS or not copied(x, weight):
        return False
    tables = [table for table in (weight.scales, weight.zeros) if table is not None]
    scale_bytes = count * TILE.value * sum(table.element_size() for table in tables)
    rows, outputs = out.shape
    problem = Problem(rows, outputs, weight.inputs, gated, weight.kind.bits, scale_bytes)
    chosen = plan(problem, processors(x.device))
    tiles = divided_up(outputs, TILE.value)
    partial, arrived = out, out
    if chosen.splits > 1:
        shape = (chosen.splits, rows, outputs)
        partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        arrived = arrivals(x.device, COUNTERS)
    few = chosen.rows <= SCALED_SUMS
    early = early_launch(x.device)
    grid = divided_up(tiles, chosen.warp_groups), chosen.splits, divided_up(rows, chosen.rows)
    _product[grid](
        _words_of(weight),
        table_view(tables[0], count),
        table_view(tables[-1], count),
        view_of(x, chosen.rows),
        (out, x if bias is None else bias, partial, arrived),
        rows,
        outputs,
        weight.inputs,
        weight.group,
        divided_up(divided_up(weight.inputs, DEPTH), chosen.splits),
        KIND=weight.kind.value,
        BITS=weight.kind.bits,
        SIDES=2 if gated else 1,
        WARP_GROUPS=chosen.warp_groups,
        COUNT=count,
        HAS_ZEROS=weight.zeros is not None,
        HAS_BIAS=bias is not None,
        ROWS=chosen.rows,
        STAGES=chosen.stages,
        SPLITS=chosen.splits,
        SCALED=not few or count > 2,
        EARLY=early,
        num_warps=4,
        maxnreg=128 if few else 168 if chosen.warp_groups == 2 else 240,
        launch_pdl=early,
    )
    return True


def copied(x: Tensor, weight: PackedWeight) -> bool:
    """Whether the copy engine takes these: rows of multiples of 16 bytes."""
    aligned = x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0
    tables = [weight.scales] if weight.zeros is None else [weight.scales, weight.zeros]
    return aligned and all(
        table.dtype in (*KINDS, torch.float32) and table.shape[1] * table.element_size() % 16 == 0
        for table in tables
    )


def _words_of(weight: PackedWeight) -> TensorDescriptor:
    if weight.kind is Kind.FP8:
        return in_blocks(weight.words, (TILE.value, DEPTH), gl.uint8)
    return table_view(weight.words.view(-1, LINE), HALVES.value * weight.kind.bits, LINE)


def table_view(matrix: Tensor, rows: int, columns: int = TILE.value) -> TensorDescriptor:
    """The copy engine's view of a table, in blocks that lie in shared memory as they are."""
    layout = gl.NVMMASharedLayout(0, matrix.element_size() * 8, 2)
    # A table of one row may have any stride.
    block, strides = [rows, columns], [matrix.shape[1], 1]
    return TensorDescriptor(matrix, list(matrix.shape), strides, block, layout)
