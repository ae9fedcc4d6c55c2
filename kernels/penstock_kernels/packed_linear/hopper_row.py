"""Kernel of packed_linear for one row on Hopper GPUs, in Gluon: words straight to registers.

A program multiplies 16 outputs, of both sides if gated. Each of its warps takes other inputs, 128 a
turn, and makes numbers of its words as operands of a small matrix instruction (m16n8k16), all of
whose columns are the row x: so it adds up the products of four lanes in float32. At the end the
sums of all warps are added. Programs share the inputs of an output if x does not fit one.

An instruction that loads words asks for whole lines of 128 bytes: with half lines an H200 reads 3.7
TB/s instead of 4.05. A line of fp8 is of one output, and eight lanes load it; but only four lanes
have a row of the matrix instruction. So half a line is a row: rows 2i and 2i + 1 are those of one
output, and x has its first half in the even columns, its second half in the odd ones. Of the result
counts what is in even rows and columns, and in odd ones.

Nothing but weights is read before the kernel that makes x has ended (see `pdl`): the words of the
first turns are then in registers, and memory stays busy between kernels. With NORM, every program
normalises x itself, which costs less than another launch.

Of floating-point codes x becomes float16, scaled (see `line_codes`). Integers are not brought to
their zero point one by one: the sum of their products with x keeps an offset times the sum of x,
which another matrix instruction computes.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment,misc"

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_launch, power_of_two, processors
from ..hopper import KINDS, as_blocks, barrier
from ..online_softmax import LOG2_E
from ..rms_norm import NormInput
from . import plan
from .hopper_codes import (
    halves_of_lines,
    lines_layout,
    numbers_of_strip,
    offset_of_strip,
    pieces,
    strip_layout,
    x_layout,
)
from .line_codes import add_lines, by_output, numbers_of_line, powers_of, unit
from .parts import add_parts, with_parts
from .weight import BLOCK, Kind, PackedWeight

MINUS_LOG2_E = gl.constexpr(-LOG2_E)
STRIP = gl.constexpr(plan.STRIP)  # outputs of a matrix instruction
TURN = gl.constexpr(plan.DEPTH)  # inputs of a warp's turn
HALF = gl.constexpr(plan.DEPTH // 2)


@gluon.jit
def _words(
    words, strip, turn, sizes,
    KIND: gl.constexpr, BITS: gl.constexpr, EVEN: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Loads the words of 16 outputs and of a turn of every warp: of fp8 (those of 8 outputs, those
    of the others), else those of half a turn each."""
    outputs, _, width = sizes
    if KIND == "fp8":
        L: gl.constexpr = lines_layout(WARPS)
        k = (turn * WARPS + gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, L)))) * TURN
        n = strip * STRIP + gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, L)))
        at = words + gl.minimum(n, outputs - 1).to(gl.int64)[None, :, None] * (width // 4)
        at += (k // 4)[:, None, None]
        at += gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
        found = gl.load(at) if EVEN else gl.load(at, mask=(k < width)[:, None, None], other=0)
        return halves_of_lines(found)
    else:  # noqa: RET505
        return (
            _half_of_words(words, strip, turn, width, 0, KIND, BITS, EVEN, WARPS),
            _half_of_words(words, strip, turn, width, 1, KIND, BITS, EVEN, WARPS),
        )


@gluon.jit
def _half_of_words(
    words, strip, turn, width, half: gl.constexpr,
    KIND: gl.constexpr, BITS: gl.constexpr, EVEN: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    L: gl.constexpr = strip_layout(KIND, BITS, WARPS)
    W: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, L))
    N: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, L))
    C: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, L))
    k = (turn * WARPS + gl.arange(0, WARPS, W)) * TURN + half * HALF
    part = gl.arange(0, BITS // 4, N)[None, :, None] * 512  # k5 of 8 bits
    at = words + ((strip // 4).to(gl.int64) * width * (BITS * 2) + strip % 4 * 128)
    at += (k * (BITS * 2))[:, None, None] + part + gl.arange(0, 128, C)[None, None, :]
    if EVEN:
        return gl.load(at)
    return gl.load(at, mask=(k < width)[:, None, None], other=0)


@gluon.jit
def _outputs(strip, at: gl.constexpr, KIND: gl.constexpr, L: gl.constexpr):
    """The outputs of the 16 rows of a strip's matrix instructions, of fp8 of those of set `at`."""
    row = gl.arange(0, 16, L)
    return strip * STRIP + (at * 8 + row // 2 if KIND == "fp8" else row)


@gluon.jit
def _of_groups(
    table, strip, turn, sizes, at: gl.constexpr, PIECE: gl.constexpr, KIND: gl.constexpr,
    GROUP: gl.constexpr, WARPS: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    """Scales or zeros [warps, 16] of sum `at` of each warp's turn."""
    outputs, inputs, _ = sizes
    n = gl.minimum(_outputs(strip, at, KIND, gl.SliceLayout(0, L)), outputs - 1)
    k = (turn * WARPS + gl.arange(0, WARPS, gl.SliceLayout(1, L))) * TURN
    k += at * PIECE if KIND != "fp8" else 0
    row = gl.minimum(k, inputs - 1) // GROUP  # beyond the inputs x is 0
    return gl.load(table + row.to(gl.int64)[:, None] * outputs + n[None, :])


@gluon.jit
def _load(
    tables, strip, turn, sizes, KIND: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    PIECE: gl.constexpr, HAS_ZEROS: gl.constexpr, EVEN: gl.constexpr, SUM: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """A strip's words of a turn, and the scale and the zero of each sum."""
    words, scales, zeros = tables
    L: gl.constexpr = gl.SliceLayout(2, SUM)
    SUMS: gl.constexpr = 2 if KIND == "fp8" else TURN // PIECE if PIECE > 0 else 0
    found = _words(words, strip, turn, sizes, KIND, BITS, EVEN, WARPS)
    factors, points = (), ()
    for i in gl.static_range(SUMS if PIECE > 0 else 0):
        one = _of_groups(scales, strip, turn, sizes, i, PIECE, KIND, GROUP, WARPS, L)
        factors = factors + (one,)  # noqa: RUF005 (Triton unpacks no tuples)
        if HAS_ZEROS:
            one = _of_groups(zeros, strip, turn, sizes, i, PIECE, KIND, GROUP, WARPS, L)
            points = points + (one,)  # noqa: RUF005
    return found, factors, points


@gluon.constexpr_function
def _place(half, count, at, piece):
    """Which sum of a turn has part `at` of a half."""
    return half * count + at if piece < 128 else 0


@gluon.jit
def _add_halves(
    sums, loaded, ring, turn, KIND: gl.constexpr, BITS: gl.constexpr, PIECE: gl.constexpr,
    ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """(total, sum of x), both [warps, 16, 8], with a turn's products. Sums of PIECE inputs are
    scaled; the sum of x grows if they are not, and zero points need it."""
    total, sum_of_x = sums
    words, scales, zeros = loaded
    dtype: gl.constexpr = ring.dtype
    SUM: gl.constexpr = total.type.layout
    A: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, SUM, 2)
    COUNT: gl.constexpr = 64 // PIECE if PIECE > 0 and PIECE < 64 else 1
    SHIFTED: gl.constexpr = KIND == "int4" or HAS_ZEROS
    OFFSET: gl.constexpr = offset_of_strip(KIND, dtype)
    blank = gl.zeros([WARPS, 16, 8], gl.float32, SUM)
    ones = gl.full([WARPS, 16, 64 // COUNT], 1.0, dtype, A)
    part, row = blank, blank
    for half in gl.static_range(2):
        x = ring.index(turn * 2 + half).load(x_layout(WARPS)).reshape([WARPS, 4, 4, 2, 2])
        x = x.permute((0, 2, 3, 1, 4)).reshape([WARPS, 64])
        if KIND == "fp4":
            numbers = numbers_of_line(words[half], KIND)
        else:
            numbers = numbers_of_strip(words[half], dtype, KIND, BITS)
        a, b = pieces(numbers, 2, COUNT), pieces(x, 1, COUNT)
        for at in gl.static_range(COUNT):
            left = gl.convert_layout(a[at], A, assert_trivial=True)
            right = gl.convert_layout(b[at], gl.SliceLayout(2, B), assert_trivial=True)
            right = gl.expand_dims(right, 2).broadcast_to([WARPS, 64 // COUNT, 8])
            part = mma_v2(left, right, part)
            if SHIFTED:
                row = mma_v2(ones, right, row)
            if PIECE > 0 and (PIECE < 128 or half == 1):
                if SHIFTED:
                    if HAS_ZEROS:
                        zero = zeros[_place(half, COUNT, at, PIECE)].to(gl.float32) + OFFSET
                        part -= row * zero[:, :, None]
                    else:
                        part -= row * (ZERO + OFFSET)
                    row = blank
                total += part * scales[_place(half, COUNT, at, PIECE)].to(gl.float32)[:, :, None]
                part = blank
    if PIECE == 0:
        return total + part, sum_of_x + row
    return total, sum_of_x


@gluon.jit
def _add(
    sums, loaded, ring, turn, KIND: gl.constexpr, BITS: gl.constexpr, PIECE: gl.constexpr,
    ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The two sums of a side, with a turn's products."""
    if KIND == "fp8":
        return add_lines(sums, loaded[0], loaded[1], ring.index(turn), PIECE > 0)
    else:  # noqa: RET505
        return _add_halves(sums, loaded, ring, turn, KIND, BITS, PIECE, ZERO, HAS_ZEROS, WARPS)


@gluon.jit
def _add_last(
    sums, loaded, ring, first, KIND: gl.constexpr, BITS: gl.constexpr, PIECE: gl.constexpr,
    ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The sums of all sides, with the products of all turns that are loaded."""
    SIDES: gl.constexpr = len(sums)
    for i in gl.static_range(len(loaded) // SIDES):
        more = ()
        for side in gl.static_range(SIDES):
            turn = loaded[i * SIDES + side]
            one = _add(
                sums[side], turn, ring, first + i, KIND, BITS, PIECE, ZERO, HAS_ZEROS, WARPS
            )  # fmt: skip
            more = more + (one,)  # noqa: RUF005
        sums = more
    return sums


@gluon.jit
def _row(
    x, norm, norm_scale, inputs, NORM: gl.constexpr, HAS_RESIDUAL: gl.constexpr,
    SPAN: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """x [SPAN], or with NORM its rms_norm; the first program stores the sum of x and residual."""
    residual, total, eps = norm
    k = gl.arange(0, SPAN, gl.BlockedLayout([8], [32], [WARPS], [0]))
    row = gl.load(x + k, mask=k < inputs, other=0)
    if HAS_RESIDUAL:
        addend = gl.load(residual + k, mask=k < inputs, other=0).to(gl.float32)
        row = (row.to(gl.float32) + addend).to(row.dtype)
        if gl.program_id(0) == 0:
            gl.store(total + k, row, mask=k < inputs)
    if NORM:
        wide = row.to(gl.float32)
        wide *= gl.rsqrt(gl.sum(wide * wide, 0) / inputs + eps)
        row = (wide * norm_scale.to(gl.float32)).to(row.dtype)
    return row


@gluon.jit
def _operand(row, KIND: gl.constexpr):
    """(x as the matrix instruction takes it, what makes a product's value of its number)."""
    if KIND == "fp8" or KIND == "fp4":
        wide = row.to(gl.float32)
        up, down = powers_of(gl.max(gl.abs(wide), 0))
        return (wide * up).to(gl.float16), down * unit(KIND)
    else:  # noqa: RET505
        return row, 1.0


@gluon.jit
def _spread(row, KIND: gl.constexpr, SPAN: gl.constexpr, WARPS: gl.constexpr):
    """Halves of turns of x in shared memory, in the order in which lanes take it: see `pack`."""
    if KIND == "fp8":  # of the bits k6 k5 k4 k3 k2 k1 k0: k2 is the half
        bits = row.reshape([SPAN // TURN // WARPS, WARPS, 2, 2, 2, 2, 2, 2, 2])
        order = bits.permute((0, 6, 1, 7, 2, 3, 4, 5, 8))
    else:  # k6 is the half
        bits = row.reshape([SPAN // TURN // WARPS, WARPS, 2, 2, 2, 2, 4, 2])
        order = bits.permute((0, 2, 1, 6, 3, 4, 5, 7))
    COUNT: gl.constexpr = SPAN // HALF // WARPS
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    memory = gl.allocate_shared_memory(row.dtype, [COUNT, WARPS, HALF], FLAT)
    memory.store(order.reshape([COUNT, WARPS, HALF]))
    barrier()
    HALVES: gl.constexpr = 2 if KIND == "fp8" else 1  # of a block
    BLOCKS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    return as_blocks(memory, COUNT // HALVES, HALVES * WARPS, HALF, BLOCKS)


@gluon.jit
def _product(
    words, scales, zeros, x, norm, norm_scale, outs, bias, outputs, inputs, width,
    KIND: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, PIECE: gl.constexpr,
    SIDES: gl.constexpr, ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr,
    NORM: gl.constexpr, HAS_RESIDUAL: gl.constexpr, EVEN: gl.constexpr, TURNS: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, SPAN: gl.constexpr, EARLY: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """out [outputs] = x [inputs] weight^T; `outputs` are a side's, `outs` as of `with_parts`."""
    SUM: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    strip = gl.program_id(0)
    above = outputs // STRIP
    sizes = outputs * SIDES, inputs, width
    tables = words, scales, zeros
    origin = gl.program_id(1) * TURNS
    loaded = ()
    for i in gl.static_range(STAGES):
        for side in gl.static_range(SIDES):
            one = _load(
                tables, strip + side * above, origin + i, sizes, KIND, BITS, GROUP, PIECE,
                HAS_ZEROS, EVEN, SUM, WARPS,
            )  # fmt: skip
            loaded = loaded + (one,)  # noqa: RUF005
    of_outputs = _of_outputs(scales, zeros, strip, outputs, KIND, PIECE, SIDES, HAS_ZEROS, SUM)
    if NORM:
        k = gl.arange(0, SPAN, gl.BlockedLayout([8], [32], [WARPS], [0]))
        norm_scale = gl.load(norm_scale + k, mask=k < inputs, other=0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    skipped = origin * (WARPS * TURN)
    row = _row(x + skipped, norm, norm_scale, inputs - skipped, NORM, HAS_RESIDUAL, SPAN, WARPS)
    row, unit_of_x = _operand(row, KIND)
    ring = _spread(row, KIND, SPAN, WARPS)
    blank = gl.zeros([WARPS, 16, 8], gl.float32, SUM)
    sums = ((blank, blank),) * SIDES
    for first in range(0, TURNS - STAGES, STAGES):
        following = ()
        for i in gl.static_range(STAGES):
            more = ()
            for side in gl.static_range(SIDES):
                one = _add(
                    sums[side], loaded[i * SIDES + side], ring, first + i, KIND, BITS, PIECE, ZERO,
                    HAS_ZEROS, WARPS,
                )  # fmt: skip
                more = more + (one,)  # noqa: RUF005
                one = _load(
                    tables, strip + side * above, origin + first + i + STAGES, sizes, KIND, BITS,
                    GROUP, PIECE, HAS_ZEROS, EVEN, SUM, WARPS,
                )  # fmt: skip
                following = following + (one,)  # noqa: RUF005
            sums = more
        loaded = following
    sums = _add_last(sums, loaded, ring, TURNS - STAGES, KIND, BITS, PIECE, ZERO, HAS_ZEROS, WARPS)
    _finish(
        sums, of_outputs, unit_of_x, outs, bias, strip, outputs, KIND, PIECE, SIDES, ZERO,
        HAS_ZEROS, HAS_BIAS, SPLITS, row.dtype,
    )  # fmt: skip


@gluon.jit
def _of_outputs(
    scales, zeros, strip, outputs, KIND: gl.constexpr, PIECE: gl.constexpr, SIDES: gl.constexpr,
    HAS_ZEROS: gl.constexpr, SUM: gl.constexpr,
):  # fmt: skip
    """Scales and zeros [16] of sums of all inputs, by side and set of outputs."""
    L: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, SUM))
    SETS: gl.constexpr = 2 if KIND == "fp8" else 1
    factors, points = (), ()
    for i in gl.static_range(SIDES * SETS if PIECE == 0 else 0):
        n = gl.minimum(_outputs(strip, i % SETS, KIND, L), outputs - 1) + i // SETS * outputs
        factors = factors + (gl.load(scales + n).to(gl.float32),)  # noqa: RUF005
        if HAS_ZEROS:
            points = points + (gl.load(zeros + n).to(gl.float32),)  # noqa: RUF005
    return factors, points


@gluon.jit
def _scaled(
    sums, of_outputs, unit_of_x, KIND: gl.constexpr, PIECE: gl.constexpr, SIDES: gl.constexpr,
    ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """The sums [warps, outputs] of products by side, of fp8 by set too, as they are to be added."""
    scales, zeros = of_outputs
    OFFSET: gl.constexpr = offset_of_strip(KIND, dtype)
    done = ()
    for side in gl.static_range(SIDES):
        first, second = sums[side]
        if PIECE == 0:
            if KIND == "fp8":
                first *= scales[side * 2][None, :, None]
                second *= scales[side * 2 + 1][None, :, None]
            else:
                if HAS_ZEROS:
                    first -= second * (zeros[side] + OFFSET)[None, :, None]
                elif KIND == "int4":
                    first -= second * (ZERO + OFFSET)
                first *= scales[side][None, :, None]
        if KIND == "fp8" or KIND == "fp4":
            first *= unit_of_x
            second *= unit_of_x
        done = done + by_output((first, second), KIND)
    return done


@gluon.jit
def _add_2(a, b, c, d):
    return a + c, b + d


@gluon.jit
def _add_4(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@gluon.jit
def _finish(
    sums, of_outputs, unit_of_x, outs, bias, strip, outputs, KIND: gl.constexpr,
    PIECE: gl.constexpr, SIDES: gl.constexpr, ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr,
    HAS_BIAS: gl.constexpr, SPLITS: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """Adds the sums of all warps, and writes the outputs, or a part of each."""
    out, parts_of_outputs, arrived = outs
    split = gl.program_id(1)
    SETS: gl.constexpr = 2 if KIND == "fp8" else 1
    parts = _scaled(sums, of_outputs, unit_of_x, KIND, PIECE, SIDES, ZERO, HAS_ZEROS, dtype)
    if SIDES * SETS == 4:
        totals = gl.reduce(parts, 0, _add_4)
    elif SIDES * SETS == 2:
        totals = gl.reduce(parts, 0, _add_2)
    else:
        totals = (gl.sum(parts[0], 0),)
    for i in gl.static_range(SETS):
        total = totals[i]
        n = strip * STRIP + i * 8 + gl.arange(0, total.shape[0], total.type.layout)
        if SIDES == 2:
            total = total / (1 + gl.exp2(total * MINUS_LOG2_E)) * totals[SETS + i]
        if HAS_BIAS:
            total += gl.load(bias + n, mask=(n < outputs) & (split == 0), other=0).to(gl.float32)
        if SPLITS > 1:
            gl.store(parts_of_outputs + split * outputs + n, total, mask=n < outputs)
        else:
            gl.store(out + n, total.to(out.dtype.element_ty), mask=n < outputs)
    if SPLITS > 1:
        first = strip * STRIP
        add_parts(out, parts_of_outputs, arrived + strip, first, outputs, SPLITS, parts[0].shape[0])


def launch(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None,
    gated: bool,
    out: Tensor,
    norm: tuple[NormInput, Tensor] | None = None,
) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched.

    `norm`: the inputs of a norm of x, and the output of its sum.
    """
    residual, scale, total, eps = None, None, None, 0.0
    if norm is not None:
        (_, residual, scale, eps), total = norm
    kind, inputs, outputs = weight.kind, weight.inputs, out.shape[1]
    piece = inputs_of_sum(weight)
    # The up outputs must begin with a strip.
    whole = not gated or outputs % plan.STRIP == 0
    fits = inputs <= plan.row_inputs(gated, normed=scale is not None)
    if piece is None or x.dtype not in KINDS or not whole or not fits:
        return False
    sums = (1 if weight.zeros is None else 2) * (plan.DEPTH // piece if piece else 0)
    problem = plan.Problem(1, outputs, inputs, gated, kind.bits, 0)
    chosen = plan.row_plan(problem, sums, processors(x.device))
    early = early_launch(x.device)
    _product[(divided_up(outputs, plan.STRIP), chosen.splits)](
        weight.words.view(torch.int32),
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        x,
        (residual, total, eps),
        scale,
        with_parts(out, chosen.splits),
        bias,
        outputs,
        inputs,
        weight.words.shape[1] * (1 if kind is Kind.FP8 else BLOCK),
        KIND=kind.value,
        BITS=kind.bits,
        GROUP=weight.group,
        PIECE=piece,
        SIDES=2 if gated else 1,
        ZERO=kind.zero,
        HAS_ZEROS=weight.zeros is not None,
        HAS_BIAS=bias is not None,
        NORM=scale is not None,
        HAS_RESIDUAL=residual is not None,
        EVEN=chosen.splits * chosen.turns * chosen.warps * plan.DEPTH == inputs,
        TURNS=chosen.turns,
        STAGES=chosen.stages,
        SPLITS=chosen.splits,
        SPAN=power_of_two(chosen.turns * chosen.warps * plan.DEPTH),
        EARLY=early,
        WARPS=chosen.warps,
        num_warps=chosen.warps,
        maxnreg=128,
        launch_pdl=early,
    )
    return True


def inputs_of_sum(weight: PackedWeight) -> int | None:
    """Inputs whose sum is scaled; 0: all. None if the kernel does not take the weight's groups."""
    if weight.group == weight.inputs:
        return 0
    # Half a turn of fp8 has inputs of all of the turn.
    sizes = (128,) if weight.kind is Kind.FP8 else (128, 64, 32, 16)
    return next((size for size in sizes if weight.group % size == 0), None)
