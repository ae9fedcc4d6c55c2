"""Triton kernels of packed_linear for any GPU: the product of few rows, and the dequantized matrix.

Programs read the words of 64 outputs, a block of 64 inputs at a time, and make numbers of them in
registers.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from ..linear.triton import sum_of_splits

TILE = tl.constexpr(64)  # outputs and inputs of a block of words
INT8, FP8, FP4 = tl.constexpr("int8"), tl.constexpr("fp8"), tl.constexpr("fp4")


@triton.jit
def _codes(words, tile, at, sizes, KIND: tl.constexpr, BITS: tl.constexpr):
    """The codes [64, 64] of outputs tile * 64 and inputs `at` on: see `pack`."""
    outputs, inputs, _ = sizes
    columns = tl.cdiv(inputs, TILE)
    if KIND == FP8:
        n, k = tile * TILE + tl.arange(0, TILE), at % 128 + tl.arange(0, TILE)
        place = at - at % 128 + ((k & 1) | ((k >> 3) & 15) << 1 | ((k >> 1) & 3) << 5)
        rows = words + n.to(tl.int64)[:, None] * (tl.cdiv(inputs, 128) * 128)
        return tl.load(rows + place[None, :], (n < outputs)[:, None], other=0).to(tl.int32)
    words += (tile.to(tl.int64) * columns + at // TILE) * (BITS * 128)
    if BITS == 4:
        word = tl.load(words + tl.arange(0, 512)).reshape([512, 1])
        fields = (word >> (tl.arange(0, 8) * 4)[None, :]) & 15
        view = fields.reshape([4, 8, 4, 4, 2, 2, 2])  # n45 n012 k12 k54 k0 k3 n3
        codes = view.permute(0, 6, 1, 3, 5, 2, 4)
    else:
        word = tl.load(words + tl.arange(0, 1024)).reshape([1024, 1])
        fields = (word >> (tl.arange(0, 4) * 8)[None, :]) & 255
        view = fields.reshape([2, 4, 8, 4, 2, 2, 2, 2])  # k5 n45 n012 k12 k4 k3 k0 n3
        codes = view.permute(1, 7, 2, 0, 4, 5, 3, 6)
    return codes.reshape([TILE, TILE])


@triton.jit
def _values(codes, KIND: tl.constexpr):
    """The numbers that stored codes stand for, float32."""
    if KIND == FP8:
        bits = ((codes & 0x7F) << 20) | ((codes & 0x80) << 24)
        return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120
    if KIND == FP4:
        bits = ((codes & 7) << 22) | ((codes & 8) << 28)
        return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2 ** 126
    if KIND == INT8:
        return (codes ^ 0x80).to(tl.float32)
    return codes.to(tl.float32)


@triton.jit
def block(
    words,
    scales,
    zeros,
    tile,
    at,
    sizes,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):
    """Weights [64, 64] float32 of outputs tile * 64 and inputs at, and their places."""
    outputs, inputs, group = sizes
    n, k = tile * TILE + tl.arange(0, TILE), at + tl.arange(0, TILE)
    values = _values(_codes(words, tile, at, sizes, KIND, BITS), KIND)
    own = (n < outputs)[:, None] & (k < inputs)[None, :]
    places = (k // group).to(tl.int64)[None, :] * outputs + n[:, None]
    if HAS_ZEROS:
        values -= tl.load(zeros + places, own, other=0).to(tl.float32)
    elif ZERO:
        values -= ZERO
    return values * tl.load(scales + places, own, other=0).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def multiply(
    x,
    words,
    scales,
    zeros,
    bias,
    out,
    partial,
    arrived,
    x_stride,
    rows,
    outputs,
    inputs,
    group,
    span,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """out [rows, outputs] = x [rows, inputs] weight^T; split i takes inputs from i * span on.

    Gated, `outputs` are those of a half, whose up outputs begin at a tile.
    """
    tile = tl.program_id(0)
    begin = tl.program_id(1) * span
    n, k, r = tile * TILE + tl.arange(0, TILE), tl.arange(0, TILE), tl.arange(0, ROWS)
    sizes = (outputs * (1 + GATED), inputs, group)
    total = tl.zeros([TILE, ROWS], tl.float32)
    up = tl.zeros([TILE, ROWS], tl.float32)
    for at in range(begin, tl.minimum(begin + span, inputs), TILE):
        live = (r < rows)[None, :] & (at + k < inputs)[:, None]
        v = tl.load(x + r.to(tl.int64)[None, :] * x_stride + (at + k)[:, None], live, other=0)
        w = block(words, scales, zeros, tile, at, sizes, KIND, BITS, ZERO, HAS_ZEROS)
        total = tl.dot(w.to(v.dtype), v, total, input_precision="ieee")
        if GATED:
            side = tile + outputs // TILE
            w = block(words, scales, zeros, side, at, sizes, KIND, BITS, ZERO, HAS_ZEROS)
            up = tl.dot(w.to(v.dtype), v, up, input_precision="ieee")
    keep = (n < outputs)[:, None] & (r < rows)[None, :]
    slot = r.to(tl.int64)[None, :] * outputs + n[:, None]
    if SPLITS > 1:
        plane = rows.to(tl.int64) * outputs
        last, total = sum_of_splits(total, partial + slot, arrived + tile, plane, keep, SPLITS)
        # Not `keep & last`: Triton 3.9's interpreter widens a scalar bool to integers.
        keep = keep & (r[None, :] < tl.where(last, rows, 0))
    if GATED:
        total = total * tl.sigmoid(total) * up
    if HAS_BIAS:
        total += tl.load(bias + n, n < outputs, other=0).to(tl.float32)[:, None]
    tl.store(out + slot, total.to(out.dtype.element_ty), keep)


@triton.jit
def dequantize(
    words,
    scales,
    zeros,
    out,
    outputs,
    inputs,
    group,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):
    """out [outputs, inputs], a block of 64 x 64 a program."""
    tile, at = tl.program_id(1), tl.program_id(0) * TILE
    sizes = (outputs, inputs, group)
    w = block(words, scales, zeros, tile, at, sizes, KIND, BITS, ZERO, HAS_ZEROS)
    n, k = tile * TILE + tl.arange(0, TILE), at + tl.arange(0, TILE)
    keep = (n < outputs)[:, None] & (k < inputs)[None, :]
    targets = out + n.to(tl.int64)[:, None] * inputs + k[None, :]
    tl.store(targets, w.to(out.dtype.element_ty), keep)
