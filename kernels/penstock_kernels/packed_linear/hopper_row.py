"""Kernel of packed_linear for one row on Hopper GPUs, in Gluon.

A program multiplies 16 outputs, of both sides if gated. Each of its warps takes other inputs, 128 a
turn. A small matrix instruction (m16n8k16), all of whose columns are x, adds up the products of
four lanes in float32; at the end the sums of all warps are added. A lane copies its words to shared
memory, and later reads what it copied itself.

One row leaves no time for conversions of codes to x's dtype. So x becomes float16: scaled by the
power of two that brings its largest magnitude to 2^14, a bfloat16 number down to 2^-29 of that stays
exact. Codes become the fractions of subnormal float16 numbers by a mask: (code - zero) x is
code x - zero x, where the sum of x over a group is computed once.

Nothing but weights is read before the kernel that makes x has ended (see `pdl`): the words of the
first turns are then here, and memory stays busy between kernels. With NORM, every program
normalises x itself, which costs less than another launch.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_launch, power_of_two, processors
from ..hopper import KINDS, REINTERPRETS, as_blocks, barrier
from ..online_softmax import LOG2_E
from ..rms_norm import NormInput
from .row_codes import factors_of_rows, line_layout, numbers_of_line, unit
from .weight import Kind, PackedWeight

MINUS_LOG2_E = gl.constexpr(-LOG2_E)
LINE = gl.constexpr(16)  # outputs of a matrix instruction
TURN = gl.constexpr(128)  # inputs of a warp's turn
HALF = gl.constexpr(64)


@gluon.constexpr_function
def _x_layout(warps):
    """Half a turn of x [warps, 64] in the order of lanes: 16 in a row in each of four."""
    registers = [[0, 1], [0, 2], [0, 4], [0, 8]]
    lanes = [[0, 16], [0, 32], [0, 0], [0, 0], [0, 0]]
    of_warps = [[1 << bit, 0] for bit in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, of_warps, [], [warps, 64])


@gluon.jit
def _words(
    words, line, live, turn, sizes, half: gl.constexpr, KIND: gl.constexpr, BITS: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """Loads the words of 16 outputs and of half a turn of every warp; none if not `live`."""
    outputs, _, width = sizes
    L: gl.constexpr = line_layout(KIND, BITS, WARPS)
    W: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, L))
    N: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, L))
    C: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, L))
    k = (turn * WARPS + gl.arange(0, WARPS, W)) * TURN + half * HALF
    if KIND == "fp8":
        n = gl.minimum(line * LINE + gl.arange(0, 16, N), outputs - 1)
        at = words + n.to(gl.int64)[None, :, None] * (width // 4)
        at += (k // 4)[:, None, None] + gl.arange(0, 16, C)[None, None, :]
    else:
        part = gl.arange(0, BITS // 4, N)[None, :, None] * 512  # k5 of 8 bits
        at = words + ((line // 4).to(gl.int64) * width * (BITS * 2) + line % 4 * 128)
        at += (k * (BITS * 2))[:, None, None] + part + gl.arange(0, 128, C)[None, None, :]
    return gl.load(at, mask=((k < width) & live)[:, None, None], other=0)


@gluon.jit
def _of_groups(
    table, line, turn, sizes, place: gl.constexpr, GROUP: gl.constexpr, WARPS: gl.constexpr,
    L: gl.constexpr,
):  # fmt: skip
    """Scales or zeros [warps, 16] of the groups that have the input `place` of each warp's turn."""
    outputs, inputs, _ = sizes
    n = gl.minimum(line * LINE + gl.arange(0, 16, gl.SliceLayout(0, L)), outputs - 1)
    k = (turn * WARPS + gl.arange(0, WARPS, gl.SliceLayout(1, L))) * TURN + place
    row = gl.minimum(k, inputs - 1) // GROUP
    return gl.load(table + row.to(gl.int64)[:, None] * outputs + n[None, :])


@gluon.jit
def _load(
    tables, line, live, turn, sizes, KIND: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    PIECE: gl.constexpr, HAS_ZEROS: gl.constexpr, SUM: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """A line's words of both halves of a turn, and the scale and the zero of each sum."""
    words, scales, zeros = tables
    L: gl.constexpr = gl.SliceLayout(2, SUM)
    found, factors, points = (), (), ()
    for half in gl.static_range(2):
        one = _words(words, line, live, turn, sizes, half, KIND, BITS, WARPS)
        found = found + (one,)  # noqa: RUF005 (Triton unpacks no tuples)
    if PIECE > 0:
        for part in gl.static_range(TURN // PIECE):
            one = _of_groups(scales, line, turn, sizes, part * PIECE, GROUP, WARPS, L)
            factors = factors + (one,)  # noqa: RUF005
            if HAS_ZEROS:
                one = _of_groups(zeros, line, turn, sizes, part * PIECE, GROUP, WARPS, L)
                points = points + (one,)  # noqa: RUF005
    return found, factors, points


@gluon.constexpr_function
def _place(half, count, at, piece):
    """Which sum of a turn has part `at` of a half."""
    return half * count + at if piece < 128 else 0


@gluon.jit
def _pieces(block, AXIS: gl.constexpr, COUNT: gl.constexpr):
    """COUNT parts of a tensor [warps, 64] or [warps, 16, 64] along its last dimension."""
    if COUNT == 1:
        return (block,)
    else:  # noqa: RET505
        SHAPE: gl.constexpr = block.shape
        if AXIS == 1:
            low, high = block.reshape([SHAPE[0], 2, SHAPE[1] // 2]).permute((0, 2, 1)).split()
        else:
            halves = block.reshape([SHAPE[0], SHAPE[1], 2, SHAPE[2] // 2])
            low, high = halves.permute((0, 1, 3, 2)).split()
        return _pieces(low, AXIS, COUNT // 2) + _pieces(high, AXIS, COUNT // 2)


@gluon.jit
def _add(
    total, loaded, x, turn, KIND: gl.constexpr, BITS: gl.constexpr,
    PIECE: gl.constexpr, ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The total [warps, 16, 8] with a turn's products; each sum of PIECE inputs is scaled."""
    words, scales, zeros = loaded
    row, sums = x
    SUM: gl.constexpr = total.type.layout
    A: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, SUM, 2)
    L: gl.constexpr = gl.SliceLayout(2, SUM)
    COUNT: gl.constexpr = 64 // PIECE if PIECE > 0 and PIECE < 64 else 1
    blank = gl.zeros([WARPS, 16, 8], gl.float32, SUM)
    part = total if PIECE == 0 else blank
    for half in gl.static_range(2):
        v = row.index(turn * 2 + half).load(_x_layout(WARPS)).reshape([WARPS, 4, 4, 2, 2])
        v = v.permute((0, 2, 3, 1, 4)).reshape([WARPS, 64])
        a, b = _pieces(numbers_of_line(words[half], KIND, BITS), 2, COUNT), _pieces(v, 1, COUNT)
        for at in gl.static_range(COUNT):
            left = gl.convert_layout(a[at], A, assert_trivial=True)
            right = gl.convert_layout(b[at], gl.SliceLayout(2, B), assert_trivial=True)
            right = gl.expand_dims(right, 2).broadcast_to([WARPS, 64 // COUNT, 8])
            part = mma_v2(left, right, part)
            if PIECE > 0 and (PIECE < 128 or half == 1):
                if ZERO:
                    one = sums.index(turn * (TURN // PIECE) + _place(half, COUNT, at, PIECE))
                    zero = factors_of_rows(KIND, gl.SliceLayout(0, L))[None, :]
                    if HAS_ZEROS:
                        zero *= zeros[_place(half, COUNT, at, PIECE)].to(gl.float32)
                    else:
                        zero *= ZERO
                    part -= (one.load(gl.SliceLayout(1, L))[:, None] * zero)[:, :, None]
                total += part * scales[_place(half, COUNT, at, PIECE)].to(gl.float32)[:, :, None]
                part = blank
    return part if PIECE == 0 else total


@gluon.jit
def _sum_and_peak(sum_a, peak_a, sum_b, peak_b):
    return sum_a + sum_b, gl.maximum(peak_a, peak_b)


@gluon.jit
def _row(
    x, norm, inputs, NORM: gl.constexpr, HAS_RESIDUAL: gl.constexpr, SPAN: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """(x [SPAN] float16 scaled to at most 2^15, what undoes it), with NORM its rms_norm.

    The first program stores the sum with the residual.
    """
    residual, scale, total, eps = norm
    k = gl.arange(0, SPAN, gl.BlockedLayout([8], [32], [WARPS], [0]))
    row = gl.load(x + k, mask=k < inputs, other=0)
    if HAS_RESIDUAL:
        addend = gl.load(residual + k, mask=k < inputs, other=0).to(gl.float32)
        row = (row.to(gl.float32) + addend).to(row.dtype)
        if gl.program_id(0) == 0:
            gl.store(total + k, row, mask=k < inputs)
    wide = row.to(gl.float32)
    if NORM:
        factor = gl.load(scale + k, mask=k < inputs, other=0).to(gl.float32)
        squares, peak = gl.reduce((wide * wide, gl.abs(wide * factor)), 0, _sum_and_peak)
        root = gl.rsqrt(squares / inputs + eps)
        wide = (wide * root * factor).to(row.dtype).to(gl.float32)
        peak *= root
    else:
        peak = gl.max(gl.abs(wide), 0)
    exponent = gl.maximum(peak.to(gl.int32, bitcast=True) >> 23, 20)
    up, down = (268 - exponent) << 23, (exponent - 14) << 23
    scaled = (wide * up.to(gl.float32, bitcast=True)).to(gl.float16)
    return scaled, down.to(gl.float32, bitcast=True)


@gluon.jit
def _spread(
    row, KIND: gl.constexpr, PIECE: gl.constexpr, ZERO: gl.constexpr, SPAN: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """Halves of turns of x in shared memory, in the order in which lanes take them (see `pack`),
    and the sums of groups or of all, in the unit of codes."""
    TURNS: gl.constexpr = SPAN // TURN // WARPS
    if KIND == "fp8":  # of the bits k6 k5 k4 k3 k2 k1 k0: k2 is the half
        bits = row.reshape([TURNS, WARPS, 2, 2, 2, 2, 2, 2, 2])
        order = bits.permute((0, 6, 1, 7, 2, 3, 4, 5, 8))
    else:  # k6 is the half
        bits = row.reshape([TURNS, WARPS, 2, 2, 2, 2, 4, 2])
        order = bits.permute((0, 2, 1, 6, 3, 4, 5, 7))
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    memory = gl.allocate_shared_memory(gl.float16, [TURNS * 2, WARPS, HALF], FLAT)
    memory.store(order.reshape([TURNS * 2, WARPS, HALF]))
    sums = memory
    if ZERO and PIECE > 0:
        PARTS: gl.constexpr = TURN // PIECE
        of_groups = gl.sum(row.to(gl.float32).reshape([SPAN // PIECE, PIECE]), 1) * 5.9604644775390625e-08  # 2^-24
        table = of_groups.reshape([TURNS, WARPS, PARTS]).permute((0, 2, 1))
        LINES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        kept = gl.allocate_shared_memory(gl.float32, [TURNS * PARTS, WARPS], LINES)
        kept.store(table.reshape([TURNS * PARTS, WARPS]))
        barrier()
        sums = as_lines(kept, TURNS * PARTS, WARPS, gl.SwizzledSharedLayout(1, 1, 1, [0]))
    elif ZERO:
        sums = gl.sum(row.to(gl.float32), 0) * 5.9604644775390625e-08
    barrier()
    ring = as_blocks(memory, TURNS * 2, WARPS, HALF, gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    return ring, sums


@gluon.jit
def as_lines(memory, COUNT: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    if REINTERPRETS:
        return memory.reinterpret(memory.dtype, [COUNT, WIDTH], LAYOUT)
    else:  # noqa: RET505
        return memory._reinterpret(memory.dtype, [COUNT, WIDTH], LAYOUT)


@gluon.jit
def _product(
    words, scales, zeros, x, norm, out, bias, outputs, inputs, width,
    KIND: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, PIECE: gl.constexpr,
    SIDES: gl.constexpr, ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr, NORM: gl.constexpr,
    HAS_RESIDUAL: gl.constexpr, TURNS: gl.constexpr, STAGES: gl.constexpr,
    SPAN: gl.constexpr, EARLY: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """out [outputs] = x [inputs] weight^T; `outputs` are those of a side."""
    SUM: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    line = gl.program_id(0)
    lines, above = gl.cdiv(outputs, LINE), outputs // LINE
    sizes = outputs * SIDES, inputs, width
    tables = words, scales, zeros
    loaded = ()
    if EARLY == 2:
        gdc_launch_dependents()
    for i in gl.static_range(STAGES):
        for side in gl.static_range(SIDES):
            one = _load(
                tables, line + side * above, True, i, sizes, KIND, BITS, GROUP, PIECE,
                HAS_ZEROS, SUM, WARPS,
            )  # fmt: skip
            loaded = loaded + (one,)  # noqa: RUF005
    if EARLY:
        gdc_wait()
        if EARLY == 1:
            gdc_launch_dependents()
    row, down = _row(x, norm, inputs, NORM, HAS_RESIDUAL, SPAN, WARPS)
    spread = _spread(row, KIND, PIECE, ZERO, SPAN, WARPS)
    blank = gl.zeros([WARPS, 16, 8], gl.float32, SUM)
    for line in range(line, lines, gl.num_programs(0)):
        sums = (blank,) * SIDES
        for first in range(0, TURNS, STAGES):
            following = ()
            for i in gl.static_range(STAGES):
                # What takes the place of these words.
                turn = first + (i + STAGES)
                past = turn >= TURNS
                turn = gl.where(past, turn - TURNS, turn)
                to = gl.where(past, line + gl.num_programs(0), line)
                more = ()
                for side in gl.static_range(SIDES):
                    more = more + (  # noqa: RUF005
                        _add(
                            sums[side], loaded[i * SIDES + side], spread, first + i, KIND, BITS,
                            PIECE, ZERO, HAS_ZEROS, WARPS,
                        ),
                    )  # fmt: skip
                    one = _load(
                        tables, to + side * above, to < lines, turn, sizes, KIND, BITS, GROUP,
                        PIECE, HAS_ZEROS, SUM, WARPS,
                    )  # fmt: skip
                    following = following + (one,)  # noqa: RUF005
                sums = more
            loaded = following
        rest = scales, zeros, bias, spread[1], down
        _finish(sums, rest, out, line, outputs, KIND, PIECE, SIDES, ZERO, HAS_ZEROS, HAS_BIAS)


@gluon.jit
def _finish(
    sums, tables, out, line, outputs, KIND: gl.constexpr, PIECE: gl.constexpr, SIDES: gl.constexpr,
    ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr,
):  # fmt: skip
    """Adds the sums of all warps, and writes the first of their equal columns."""
    scales, zeros, bias, sum_of_x, down = tables
    L: gl.constexpr = gl.SliceLayout(0, sums[0].type.layout)
    N: gl.constexpr = gl.SliceLayout(1, L)
    n = line * LINE + gl.arange(0, 16, N)
    keep = n < outputs
    factors = factors_of_rows(KIND, N)
    done = ()
    for side in gl.static_range(SIDES):
        total = gl.sum(sums[side], 0)
        if PIECE == 0:
            at = side * outputs + n
            if ZERO:
                zero = ZERO * factors
                if HAS_ZEROS:
                    zero = gl.load(zeros + at, mask=keep, other=0).to(gl.float32) * factors
                total -= (zero * sum_of_x)[:, None]
            total *= gl.load(scales + at, mask=keep, other=0).to(gl.float32)[:, None]
        done = done + (total * (down * unit(KIND) / factors)[:, None],)  # noqa: RUF005
    total = done[0]
    if SIDES == 2:
        total = total / (1 + gl.exp2(total * MINUS_LOG2_E)) * done[1]
    if HAS_BIAS:
        total += gl.load(bias + n, mask=keep, other=0).to(gl.float32)[:, None]
    column = gl.arange(0, 8, gl.SliceLayout(0, L))[None, :]
    at = out + n[:, None] + 0 * column
    gl.store(at, total.to(out.dtype.element_ty), mask=keep[:, None] & (column == 0))


def launch(
    source: Tensor | tuple[NormInput, Tensor],
    weight: PackedWeight,
    bias: Tensor | None,
    gated: bool,
    out: Tensor,
    warps: int = 8, stages: int = 2, maxnreg: int | None = 128, programs: int = 2, early: int = 1,
) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched.

    `source` is x, or the inputs of the norm and the output of its sum.
    """
    x, residual, scale, total, eps = source, None, None, None, 0.0
    if isinstance(source, tuple):
        (x, residual, scale, eps), total = source
    piece = inputs_of_sum(weight)
    outputs = out.shape[1]
    # The up outputs must begin with a line.
    if piece is None or len(x) != 1 or x.dtype not in KINDS or (gated and outputs % LINE.value):
        return False
    words, inputs = weight.words, weight.inputs
    width = words.shape[1] * (1 if weight.kind is Kind.FP8 else 64)
    step = warps * TURN.value
    turns = divided_up(divided_up(inputs, step), stages) * stages
    pdl = early_launch(x.device)
    lines = divided_up(outputs, LINE.value)
    _product[(min(lines, programs * processors(out.device)),)](
        words.view(torch.int32),
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        x,
        (residual, scale, total, eps),
        out,
        bias,
        outputs,
        inputs,
        width,
        KIND=weight.kind.value,
        BITS=weight.kind.bits,
        GROUP=weight.group,
        PIECE=piece,
        SIDES=2 if gated else 1,
        ZERO=weight.kind.zero,
        HAS_ZEROS=weight.zeros is not None,
        HAS_BIAS=bias is not None,
        NORM=scale is not None,
        HAS_RESIDUAL=residual is not None,
        TURNS=turns,
        STAGES=stages,
        SPAN=power_of_two(turns * step),
        EARLY=early if pdl else 0,
        WARPS=warps,
        num_warps=warps,
        maxnreg=maxnreg,
        launch_pdl=pdl,
    )
    return True


def inputs_of_sum(weight: PackedWeight) -> int | None:
    """Inputs whose sum is scaled; 0: all. None if the kernel does not take the weight's groups."""
    if weight.group == weight.inputs:
        return 0
    # Half a turn of fp8 has inputs of all of the turn.
    sizes = (128,) if weight.kind is Kind.FP8 else (128, 64, 32, 16)
    return next((size for size in sizes if weight.group % size == 0), None)
