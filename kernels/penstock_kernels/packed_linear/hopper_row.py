"""Kernel of packed_linear for one row on Hopper GPUs, in Gluon: words straight to registers.

A program multiplies 16 outputs, of both sides if gated. Each of its warps takes other inputs, 128 a
turn, and makes numbers of its words as operands of a small matrix instruction (m16n8k16), all of
whose columns are the row x: so it adds up the products of four lanes in float32. At the end the
sums of all warps are added.

Nothing but weights is read before the kernel that makes x has ended (see `pdl`): the words of the
first turns are then in registers, and memory stays busy between kernels. With NORM, every program
normalises x itself, which costs less than another launch.

Integers are not brought to their zero point one by one: the sum of their products with x keeps an
offset times the sum of x, which another matrix instruction computes.
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
from .hopper_codes import numbers_of_strip, offset_of_strip, pieces, strip_layout, x_layout
from .weight import BLOCK, Kind, PackedWeight

MINUS_LOG2_E = gl.constexpr(-LOG2_E)
STRIP = gl.constexpr(plan.STRIP)  # outputs of a matrix instruction
TURN = gl.constexpr(plan.DEPTH)  # inputs of a warp's turn
HALF = gl.constexpr(plan.DEPTH // 2)


@gluon.jit
def _words(
    words, strip, turn, sizes, half: gl.constexpr,
    KIND: gl.constexpr, BITS: gl.constexpr, EVEN: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Loads the words of 16 outputs and of half a turn of every warp."""
    outputs, _, width = sizes
    L: gl.constexpr = strip_layout(KIND, BITS, WARPS)
    W: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, L))
    N: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, L))
    C: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, L))
    k = (turn * WARPS + gl.arange(0, WARPS, W)) * TURN + half * HALF
    if KIND == "fp8":
        n = gl.minimum(strip * STRIP + gl.arange(0, 16, N), outputs - 1)
        at = words + n.to(gl.int64)[None, :, None] * (width // 4)
        at += (k // 4)[:, None, None] + gl.arange(0, 16, C)[None, None, :]
    else:
        part = gl.arange(0, BITS // 4, N)[None, :, None] * 512  # k5 of 8 bits
        at = words + ((strip // 4).to(gl.int64) * width * (BITS * 2) + strip % 4 * 128)
        at += (k * (BITS * 2))[:, None, None] + part + gl.arange(0, 128, C)[None, None, :]
    if EVEN:
        return gl.load(at)
    return gl.load(at, mask=(k < width)[:, None, None], other=0)


@gluon.jit
def _of_groups(
    table, strip, turn, sizes, place: gl.constexpr, GROUP: gl.constexpr, WARPS: gl.constexpr,
    L: gl.constexpr,
):  # fmt: skip
    """Scales or zeros [warps, 16] of the groups that have the input `place` of each warp's turn."""
    outputs, inputs, _ = sizes
    n = gl.minimum(strip * STRIP + gl.arange(0, 16, gl.SliceLayout(0, L)), outputs - 1)
    k = (turn * WARPS + gl.arange(0, WARPS, gl.SliceLayout(1, L))) * TURN + place
    row = gl.minimum(k, inputs - 1) // GROUP  # beyond the inputs x is 0
    return gl.load(table + row.to(gl.int64)[:, None] * outputs + n[None, :])


@gluon.jit
def _load(
    tables, strip, turn, sizes, KIND: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr,
    PIECE: gl.constexpr, HAS_ZEROS: gl.constexpr, EVEN: gl.constexpr, SUM: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """A strip's words of both halves of a turn, and the scale and the zero of each sum."""
    words, scales, zeros = tables
    L: gl.constexpr = gl.SliceLayout(2, SUM)
    found, factors, points = (), (), ()
    for half in gl.static_range(2):
        one = _words(words, strip, turn, sizes, half, KIND, BITS, EVEN, WARPS)
        found = found + (one,)  # noqa: RUF005 (Triton unpacks no tuples)
    if PIECE > 0:
        for part in gl.static_range(TURN // PIECE):
            one = _of_groups(scales, strip, turn, sizes, part * PIECE, GROUP, WARPS, L)
            factors = factors + (one,)  # noqa: RUF005
            if HAS_ZEROS:
                one = _of_groups(zeros, strip, turn, sizes, part * PIECE, GROUP, WARPS, L)
                points = points + (one,)  # noqa: RUF005
    return found, factors, points


@gluon.constexpr_function
def _place(half, count, at, piece):
    """Which sum of a turn has part `at` of a half."""
    return half * count + at if piece < 128 else 0


@gluon.jit
def _add(
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
def _normalised(
    x, norm, inputs, NORM: gl.constexpr, HAS_RESIDUAL: gl.constexpr, SPAN: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """x [SPAN], or with NORM its rms_norm; the first program stores the sum."""
    residual, scale, sums, eps = norm
    k = gl.arange(0, SPAN, gl.BlockedLayout([8], [32], [WARPS], [0]))
    row = gl.load(x + k, mask=k < inputs, other=0)
    if HAS_RESIDUAL:
        addend = gl.load(residual + k, mask=k < inputs, other=0).to(gl.float32)
        row = (row.to(gl.float32) + addend).to(row.dtype)
        if gl.program_id(0) == 0:
            gl.store(sums + k, row, mask=k < inputs)
    if NORM:
        wide = row.to(gl.float32)
        wide *= gl.rsqrt(gl.sum(wide * wide, 0) / inputs + eps)
        row = (wide * gl.load(scale + k, mask=k < inputs, other=0).to(gl.float32)).to(row.dtype)
    return row


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
    return as_blocks(memory, COUNT, WARPS, HALF, gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


@gluon.jit
def _product(
    words, scales, zeros, x, norm, out, bias, outputs, inputs, width,
    KIND: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, PIECE: gl.constexpr,
    SIDES: gl.constexpr, ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr,
    NORM: gl.constexpr, HAS_RESIDUAL: gl.constexpr, EVEN: gl.constexpr, TURNS: gl.constexpr,
    STAGES: gl.constexpr, SPAN: gl.constexpr, EARLY: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """out [outputs] = x [inputs] weight^T; `outputs` are those of a side."""
    SUM: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    strip = gl.program_id(0)
    above = outputs // STRIP
    sizes = outputs * SIDES, inputs, width
    tables = words, scales, zeros
    loaded = ()
    for i in gl.static_range(STAGES):
        for side in gl.static_range(SIDES):
            one = _load(
                tables, strip + side * above, i, sizes, KIND, BITS, GROUP, PIECE, HAS_ZEROS, EVEN,
                SUM, WARPS,
            )  # fmt: skip
            loaded = loaded + (one,)  # noqa: RUF005
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = _normalised(x, norm, inputs, NORM, HAS_RESIDUAL, SPAN, WARPS)
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
                    tables, strip + side * above, first + i + STAGES, sizes, KIND, BITS, GROUP,
                    PIECE, HAS_ZEROS, EVEN, SUM, WARPS,
                )  # fmt: skip
                following = following + (one,)  # noqa: RUF005
            sums = more
        loaded = following
    for i in gl.static_range(STAGES):
        more = ()
        for side in gl.static_range(SIDES):
            one = _add(
                sums[side], loaded[i * SIDES + side], ring, TURNS - STAGES + i, KIND, BITS, PIECE,
                ZERO, HAS_ZEROS, WARPS,
            )  # fmt: skip
            more = more + (one,)  # noqa: RUF005
        sums = more
    rest = scales, zeros, bias
    _finish(
        sums, rest, out, strip, outputs, KIND, PIECE, SIDES, ZERO, HAS_ZEROS, HAS_BIAS, row.dtype
    )


@gluon.jit
def _finish(
    sums, rest, out, strip, outputs, KIND: gl.constexpr, PIECE: gl.constexpr, SIDES: gl.constexpr,
    ZERO: gl.constexpr, HAS_ZEROS: gl.constexpr, HAS_BIAS: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """Adds the sums of all warps, and writes the first of their equal columns."""
    scales, zeros, bias = rest
    L: gl.constexpr = gl.SliceLayout(0, sums[0][0].type.layout)
    n = strip * STRIP + gl.arange(0, 16, gl.SliceLayout(1, L))
    keep = n < outputs
    OFFSET: gl.constexpr = offset_of_strip(KIND, dtype)
    done = ()
    for side in gl.static_range(SIDES):
        total = gl.sum(sums[side][0], 0)
        if PIECE == 0:
            at = side * outputs + n
            if HAS_ZEROS:
                zero = gl.load(zeros + at, mask=keep, other=0).to(gl.float32) + OFFSET
                total -= gl.sum(sums[side][1], 0) * zero[:, None]
            elif KIND == "int4":
                total -= gl.sum(sums[side][1], 0) * (ZERO + OFFSET)
            total *= gl.load(scales + at, mask=keep, other=0).to(gl.float32)[:, None]
        done = done + (total,)  # noqa: RUF005
    total = done[0]
    if SIDES == 2:
        total = total / (1 + gl.exp2(total * MINUS_LOG2_E)) * done[1]
    if HAS_BIAS:
        total += gl.load(bias + n, mask=keep, other=0).to(gl.float32)[:, None]
    column = gl.arange(0, 8, gl.SliceLayout(0, L))[None, :]
    at = out + n[:, None] + 0 * column
    gl.store(at, total.to(out.dtype.element_ty), mask=keep[:, None] & (column == 0))


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
    fits = inputs <= (plan.MOST_INPUTS if scale is None else plan.MOST_NORMED)
    if piece is None or x.dtype not in KINDS or not whole or not fits:
        return False
    sums = (1 if weight.zeros is None else 2) * (plan.DEPTH // piece if piece else 0)
    problem = plan.Problem(1, outputs, inputs, gated, kind.bits, 0)
    chosen = plan.row_plan(problem, sums, processors(x.device))
    early = early_launch(x.device)
    _product[(divided_up(outputs, plan.STRIP),)](
        weight.words.view(torch.int32),
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        x,
        (residual, scale, total, eps),
        out,
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
        EVEN=chosen.turns * chosen.warps * plan.DEPTH == inputs,
        TURNS=chosen.turns,
        STAGES=chosen.stages,
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
