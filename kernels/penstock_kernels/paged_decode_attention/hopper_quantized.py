"""Kernel of paged_decode_attention for Hopper GPUs and quantized caches, in Gluon.

Shares, ring and products are those of `hopper`. The copying warp brings codes as they are stored.
The warp group makes numbers of them in registers: keys are the operand of the first product from
there; values go through shared memory, where the second product turns them.

Of integers the products take codes, less half of their range: both are exact in bfloat16. With
x = code * scale + zero, a score is scale * (q . codes) + zero * sum(q), and a weighted sum of
values is that of codes with weights * scale, plus the sum of weights * zero, all in float32. So a
scale multiplies once per key and head, not once per element.

The newest key and value are quantized and written here, but are not read back: they begin the
running softmax of the program that has the pair's last tile.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from typing import NamedTuple

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
from triton.language.extra.cuda import gdc_wait

from ..device import arrivals, early_launch, power_of_two, processors
from ..hopper import ATOM, Rule, as_blocks, barrier, make_bars
from ..kv_quantization_triton import codes, parameters, saturated, stored_as
from ..online_softmax import LOG2_E, LOWEST
from .hopper import GREATEST, Memory, put_pair, put_queries, rotation
from .hopper_copy import copy_share
from .shares import owner_of, part_at, share_of, tiles_in
from .splits import PAIRS


@gluon.constexpr_function
def _params_layout(keys, block_tokens):
    """Parameters [pages, block_tokens] of a tile: in a thread those of the rows of its scores."""
    at = [[key // block_tokens, key % block_tokens] for key in (1, 2, 4, 8, 16, 32, 64)]
    registers = [at[3], at[6]] if keys == 128 else [at[3]]
    shape = [keys // block_tokens, block_tokens]
    return gl.DistributedLinearLayout(registers, [[0, 0], [0, 0], *at[:3]], at[4:6], [], shape)


@gluon.constexpr_function
def _assembly(form):
    """PTX that makes bfloat16 of four bytes: two pairs, of 4 bits two of low and two of high ones.

    Integers come less 128, or less 8. See `packed_linear.hopper_codes` for the ways.
    """
    if form in ("e4m3", "e5m2"):
        down, mask, factor = (
            (4, 0x07F007F0, 0x7B807B80) if form == "e4m3" else (3, 0x0FE00FE0, 0x77807780)
        )
        lines = [f"mov.b32 f, {factor};"]  # 2 ** 120, 2 ** 112
        for pair, to_high_bytes in enumerate(("0x1404", "0x3424")):
            lines += [
                f"prmt.b32 t, $2, 0, {to_high_bytes};",
                f"shr.u32 u, t, {down};",
                f"and.b32 u, u, {mask};",
                "lop3.b32 t, t, 0x80008000, u, 0xea;",  # (t & sign) | u
                f"mul.bf16x2 ${pair}, t, f;",
            ]
    elif form == "int8":
        lines = []
        for pair, to_low_bytes in enumerate(("0x4140", "0x4342")):
            lines += [
                f"prmt.b32 t, $2, 0, {to_low_bytes};",
                "lop3.b32 u, t, 0x007f007f, 0x43004300, 0xea;",  # 128 + the low 7 bits
                "lop3.b32 t, t, 0x00800080, 0x43804380, 0x6a;",  # 128, or 256 without the 8th
                f"sub.bf16x2 ${pair}, u, t;",
            ]
    else:
        lines = ["mov.b32 f, 0x43084308;"]  # 128 + 8
        for pair, to_low_bytes in enumerate(("0x4140", "0x4342")):
            lines += [
                f"prmt.b32 t, $4, 0, {to_low_bytes};",
                "lop3.b32 u, t, 0x000f000f, 0x43004300, 0xea;",
                f"sub.bf16x2 ${pair}, u, f;",
                "shr.u32 t, t, 4;",
                "lop3.b32 u, t, 0x000f000f, 0x43004300, 0xea;",
                f"sub.bf16x2 ${pair + 2}, u, f;",
            ]
    return "{ .reg .b32 t, u, f;\n" + "\n".join(lines) + "\n}"


@gluon.constexpr_function
def _bfloat16(count):
    return (gl.bfloat16,) * count


@gluon.jit
def _numbers(tile, FORM: gl.constexpr):
    """Codes [KEYS, bytes of a head] -> numbers [KEYS, D] bfloat16, in a layout that follows."""
    asm: gl.constexpr = _assembly(FORM)
    if FORM == "int4":
        kinds: gl.constexpr = _bfloat16(2)
        low, high = gl.inline_asm_elementwise(asm, "=r,=r,=r,=r,r", (tile,), kinds, True, 4)
        both = gl.join(low, high).permute((0, 2, 1))
        return both.reshape([tile.shape[0], 2 * tile.shape[1]])
    else:  # noqa: RET505
        kind: gl.constexpr = _bfloat16(1)
        (numbers,) = gl.inline_asm_elementwise(asm, "=r,=r,r", (tile,), kind, True, 4)
        return numbers


@gluon.jit
def _params(ring, stage, BLOCK_TOKENS: gl.constexpr, MIDDLE: gl.constexpr, LAYOUT: gl.constexpr):
    """(scales, zeros of codes less MIDDLE) of a tile's keys or values, [KEYS, 1] float32."""
    KEYS: gl.constexpr = ring.shape[1] * BLOCK_TOKENS
    P_LAYOUT: gl.constexpr = _params_layout(KEYS, BLOCK_TOKENS)
    words = ring.index(stage).slice(0, BLOCK_TOKENS, 1).load(P_LAYOUT).reshape([KEYS])
    words = gl.convert_layout(words, gl.SliceLayout(1, LAYOUT), assert_trivial=True)
    scale = (words & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    zero = (words >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return scale[:, None], (zero + MIDDLE * scale)[:, None]


@gluon.jit
def _put(
    x, crossed, column, row, memory, BITS: gl.constexpr, D: gl.constexpr, LARGEST: gl.constexpr
):
    """Stores a key or value x [D] float32 in `row` (none if < 0); returns it as it is stored.

    `crossed` are the elements half a head away, of 4 bits only.
    """
    cache, kv_params = memory
    writes = row >= 0
    if BITS == 0:
        kept = saturated(x, cache.dtype.element_ty, LARGEST)
        gl.store(cache + row * D + column, kept, mask=writes & (column < D))
        return kept.to(gl.float32)
    else:  # noqa: RET505
        scale, zero = parameters(gl.min(x, 0), gl.max(x, 0), BITS)
        code = codes(x, scale, zero, BITS)
        if BITS == 8:
            gl.store(cache + row * D + column, code, mask=writes & (column < D))
        else:
            byte = code | codes(crossed, scale, zero, BITS) << 4
            half = writes & (column < D // 2)
            gl.store(cache + row * (D // 2) + column, byte, mask=half)
        if writes:
            gl.store(kv_params + row * 2, scale)
            gl.store(kv_params + row * 2 + 1, zero)
        return code.to(gl.float32) * scale.to(gl.float32) + zero.to(gl.float32)


@gluon.jit
def _rotated(x, angles, column, D: gl.constexpr):
    cos, sin, other = rotation(angles, column, D)
    return gl.load(x + column).to(gl.float32) * cos + gl.load(x + other).to(gl.float32) * sin


@gluon.jit
def _newest_key(
    key, angles, row, memory, L: gl.constexpr,
    BITS: gl.constexpr, D: gl.constexpr, LARGEST: gl.constexpr,
):  # fmt: skip
    """The newest key [1, D] as the cache now has it, in columns of L."""
    column = gl.arange(0, D, gl.SliceLayout(0, L))
    x = _rotated(key, angles, column, D)
    crossed = x
    if BITS == 4:
        crossed = _rotated(key, angles, (column + D // 2) % D, D)
    return _put(x, crossed, column, row, memory, BITS, D, LARGEST)[None, :]


@gluon.jit
def _newest_value(
    value, row, memory, L: gl.constexpr,
    BITS: gl.constexpr, D: gl.constexpr, LARGEST: gl.constexpr,
):  # fmt: skip
    """The newest value [D, 1] as the cache now has it, in rows of L."""
    column = gl.arange(0, D, gl.SliceLayout(1, L))
    x = gl.load(value + column).to(gl.float32)
    crossed = x
    if BITS == 4:
        crossed = gl.load(value + (column + D // 2) % D).to(gl.float32)
    return _put(x, crossed, column, row, memory, BITS, D, LARGEST)[:, None]


@gluon.jit
def _sum(
    qkv, angles, slot_mapping, memory, kv_len, outs, rings, bars, operands, share, kv_heads, window,
    scale, strides,
    GROUP: gl.constexpr, HEADS: gl.constexpr, BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr,
    D: gl.constexpr, STAGES: gl.constexpr, FORM: gl.constexpr, BITS: gl.constexpr,
    LARGEST: gl.constexpr, SINKS: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """The warp group: softmax and sums over all tiles of this program's share."""
    q, k, v = qkv
    cos_sin, angle_stride = angles
    full, empty = bars
    key_codes, value_codes, key_params, value_params = rings
    query_blocks, queries, values, weights = operands
    begin, end, sequence, base, total, programs, extra, _ = share
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    K_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    BYTES: gl.constexpr = key_codes.shape[2]
    V_LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BYTES, BYTES // 8], [4, 1], [1, 0])
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    H_LAYOUT: gl.constexpr = gl.SliceLayout(0, S_LAYOUT)
    MIDDLE: gl.constexpr = 128.0 if BITS == 8 else 8.0
    blank = gl.zeros([KEYS, HEADS], gl.float32, S_LAYOUT)
    key_row = gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT))
    query_row = gl.arange(0, HEADS, gl.SliceLayout(1, L))
    query_head = gl.arange(0, HEADS, H_LAYOUT)
    mine = (query_head < GROUP)[None, :]
    if EARLY:
        gdc_wait()
    at, done = begin, 0
    while at + extra < end:
        length = gl.load(kv_len + sequence)
        place = gl.load(slot_mapping + sequence)
        wide = sequence.to(gl.int64)
        first, tiles = tiles_in(length, window, KEYS)
        head, start, skipped, count = part_at(at, end, base, tiles, extra)
        turn = cos_sin + gl.maximum(length - 1, 0).to(gl.int64) * angle_stride
        x = q + wide * strides[0] + (head * GROUP + query_row) * strides[1]
        put_queries(x, turn, query_blocks, GROUP, HEADS, D)
        fence_async_shared()
        barrier()
        acc = gl.zeros([D, HEADS], gl.float32, S_LAYOUT)
        peak = gl.full([HEADS], LOWEST, gl.float32, H_LAYOUT)
        weight_sums = gl.zeros([KEYS, HEADS], gl.float32, S_LAYOUT)
        zero_sums = gl.zeros([KEYS, HEADS], gl.float32, S_LAYOUT)
        rotated = queries.load(L).to(gl.float32)
        query_sums = gl.convert_layout(gl.sum(rotated, 1), H_LAYOUT)[None, :]
        if (skipped + count == tiles) & (length > 0):
            block = (place // BLOCK_TOKENS).to(gl.int64) * 2 * kv_heads + head
            row = block * BLOCK_TOKENS + place % BLOCK_TOKENS
            row = gl.where(place >= 0, row, -1)
            key = _newest_key(
                k + wide * strides[2] + head * strides[3], turn, row, memory, L, BITS, D, LARGEST
            )
            newest = gl.convert_layout(gl.sum(rotated * key, 1), H_LAYOUT) * scale
            peak = gl.where(query_head < GROUP, newest, LOWEST)
            weight_sums = gl.where((key_row == 0)[:, None] & mine, 1.0, weight_sums)
            row = gl.where(place >= 0, row + kv_heads * BLOCK_TOKENS, -1)
            value = _newest_value(
                v + wide * strides[4] + head * strides[5], row, memory, S_LAYOUT, BITS, D, LARGEST
            )
            acc = gl.where(mine, value, acc)
        for i in range(count):
            stage = done % STAGES
            mbarrier.wait(full.index(stage), done // STAGES & 1)
            keys = _numbers(key_codes.index(stage).load(K_LAYOUT), FORM)
            keys = gl.convert_layout(keys, K_LAYOUT, assert_trivial=True)
            flying = warpgroup_mma(
                keys, queries.permute((1, 0)), blank, use_acc=False, is_async=True
            )
            acc = warpgroup_mma_wait(1, [acc])
            values.store(_numbers(value_codes.index(stage).load(V_LAYOUT), FORM))
            scores = warpgroup_mma_wait(0, [flying])
            key = (first + skipped + i) * KEYS + key_row
            seen = ((key < length - 1) & (key >= length - window))[:, None]
            if BITS != 0:
                key_scales, key_zeros = _params(key_params, stage, BLOCK_TOKENS, MIDDLE, S_LAYOUT)
                scores = scores * key_scales + query_sums * key_zeros
            scores = gl.where(seen & mine, scores * scale, float("-inf"))
            new_peak = gl.maximum(peak, gl.max(scores, 0))
            weight = gl.exp2(scores - new_peak[None, :])
            shrink = gl.exp2(peak - new_peak)[None, :]
            peak = new_peak
            weight_sums = weight_sums * shrink + weight
            if BITS != 0:
                scales, zeros = _params(value_params, stage, BLOCK_TOKENS, MIDDLE, S_LAYOUT)
                zero_sums = zero_sums * shrink + gl.where(seen, weight * zeros, 0.0)
                weight = gl.where(seen, weight * scales, 0.0)
            weights.store(weight.to(weights.dtype))
            fence_async_shared()
            barrier()
            mbarrier.arrive(empty.index(stage), count=1)
            turned = values.permute((1, 0))
            acc = warpgroup_mma(turned, weights, acc * shrink, is_async=True)
            acc = warpgroup_mma_wait(1, [acc])  # it goes on beside the next keys
            done += 1
        acc = warpgroup_mma_wait(0, [acc])
        if BITS != 0:
            acc += gl.sum(zero_sums, 0)[None, :]
        owners = (
            owner_of(start + extra, total, programs),
            owner_of(start + extra + tiles - 1, total, programs),
        )
        put_pair(
            (acc, peak, gl.sum(weight_sums, 0)), outs, (wide * kv_heads + head, head), owners,
            (start, total, programs, gl.where(at > begin, 1, 0)), GROUP, D, SINKS,
        )  # fmt: skip
        at = start + tiles + extra
        ended = head == kv_heads - 1
        sequence = gl.where(ended, sequence + 1, sequence)
        base = gl.where(ended, at, base)


@gluon.jit(do_not_specialize=["sequences"])
def _attend(
    codes_desc, params_desc, qkv, angles, slot_mapping, memory, tables, kv_len, outs, scale, window,
    strides, kv_heads, sequences, nowhere,
    GROUP: gl.constexpr, HEADS: gl.constexpr, BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr,
    D: gl.constexpr, BYTES: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr,
    LEAST: gl.constexpr, FORM: gl.constexpr, BITS: gl.constexpr, LARGEST: gl.constexpr,
    SINKS: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    kind: gl.constexpr = qkv[0].dtype.element_ty
    share = share_of(kv_len, kv_heads, sequences, window, KEYS, SEQUENCES, LEAST)
    PAGES: gl.constexpr = KEYS // BLOCK_TOKENS
    C_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, BYTES], gl.uint8)
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, D], kind)
    V_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, D], kind)
    W_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, KEYS], kind)
    H_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, ATOM], kind)
    queries = gl.allocate_shared_memory(kind, [HEADS, D], Q_LAYOUT)
    query_blocks = as_blocks(queries, D // ATOM, HEADS, ATOM, H_LAYOUT)
    values = gl.allocate_shared_memory(kind, [KEYS, D], V_LAYOUT)
    weights = gl.allocate_shared_memory(kind, [HEADS, KEYS], W_LAYOUT)
    keys = gl.allocate_shared_memory(gl.uint8, [STAGES, KEYS, BYTES], C_LAYOUT)
    vals = gl.allocate_shared_memory(gl.uint8, [STAGES, KEYS, BYTES], C_LAYOUT)
    B_LAYOUT: gl.constexpr = codes_desc.layout
    blocks = (
        as_blocks(keys, STAGES * PAGES, BLOCK_TOKENS, BYTES, B_LAYOUT),
        as_blocks(vals, STAGES * PAGES, BLOCK_TOKENS, BYTES, B_LAYOUT),
    )
    descs, copied = (codes_desc,), (blocks,)
    key_params, value_params = keys, vals
    ROWS: gl.constexpr = params_desc.block_shape[0]
    TILE_BYTES: gl.constexpr = 2 * KEYS * (BYTES if BITS == 0 else BYTES + ROWS * 4)
    if BITS != 0:
        P_LAYOUT: gl.constexpr = params_desc.layout
        shape: gl.constexpr = [STAGES, PAGES, ROWS * BLOCK_TOKENS]
        key_params = gl.allocate_shared_memory(gl.int32, shape, P_LAYOUT)
        value_params = gl.allocate_shared_memory(gl.int32, shape, P_LAYOUT)
        some = (
            as_blocks(key_params, STAGES * PAGES, ROWS, BLOCK_TOKENS, P_LAYOUT),
            as_blocks(value_params, STAGES * PAGES, ROWS, BLOCK_TOKENS, P_LAYOUT),
        )
        descs, copied = (codes_desc, params_desc), (blocks, some)
    bars = make_bars(STAGES, 1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_sum, (
                qkv, angles, slot_mapping, memory, kv_len, outs,
                (keys, vals, key_params, value_params), bars,
                (query_blocks, queries, values, weights.permute((1, 0))), share, kv_heads,
                window, scale, strides,
                GROUP, HEADS, BLOCK_TOKENS, KEYS, D, STAGES, FORM, BITS, LARGEST, SINKS, EARLY,
            )),
            (copy_share, (
                descs, tables, kv_len, outs[0], copied, bars, share, kv_heads, sequences, window,
                nowhere, GROUP, BLOCK_TOKENS, KEYS, D, 1, TILE_BYTES, STAGES, EARLY,
            )),
        ],
        [1],
        [40],
    )  # fmt: skip


class Tiles(NamedTuple):
    """Keys of a tile, tiles of a program's ring, tiles of a share at least, programs resident."""

    keys: int
    stages: int
    least: int
    resident: int


def tiles_of(size: int, row_bytes: int) -> Tiles:
    """Launch constants for heads of `size` in rows of `row_bytes`."""
    return Tiles(64, 4, 2, 2) if row_bytes >= 128 else Tiles(64, 6, 2, 2)


FORMS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def launch(tensors: tuple[Tensor, ...], memory: Memory, rule: Rule) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched.

    `tensors` = (q, k, v, cos_sin, slot_mapping, out), `memory` = (kv_cache, block_tables, slots,
    kv_len, kv_params), `rule` = (scale, window, sinks).
    """
    q, k, v, cos_sin, slot_mapping, out = tensors
    scale, window, sinks = rule
    kv_cache, block_tables, slots, kv_len, kv_params = memory
    if not fits(q, kv_cache):
        return False
    sequences, heads, size = q.shape
    _, _, kv_heads, block_tokens, row_bytes = kv_cache.shape
    tiles, group = tiles_of(size, row_bytes), heads // kv_heads
    early = early_launch(q.device)
    programs = processors(q.device) * tiles.resident
    # At most two pairs of a program are shared with others.
    parts = torch.empty((programs * 2 * group, size), dtype=torch.float32, device=q.device)
    peaks = torch.empty((programs * 2 * group, 2), dtype=torch.float32, device=q.device)
    form = stored_as(kv_cache, size)
    codes_view = rows_of(kv_cache)
    _attend[(programs,)](
        codes_view,
        codes_view if kv_params is None else params_of(kv_params),
        (q, k, v),
        (cos_sin, cos_sin.stride(0)),
        slot_mapping,
        (kv_cache, kv_cache if kv_params is None else kv_params),
        (block_tables, slots, block_tables.stride(0)),
        kv_len,
        (out, parts, peaks, arrivals(q.device, PAIRS), kv_len if sinks is None else sinks),
        scale * LOG2_E,
        window or block_tables.shape[1] * block_tokens,
        (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2]),
        kv_heads,
        sequences,
        kv_cache.numel() // row_bytes,
        GROUP=group,
        HEADS=8 if group <= 8 else 16,
        BLOCK_TOKENS=block_tokens,
        KEYS=tiles.keys,
        D=size,
        BYTES=row_bytes,
        STAGES=tiles.stages,
        # Of 32 a warp adds up the tiles by itself.
        SEQUENCES=32 if sequences <= 32 else max(128, power_of_two(sequences)),
        LEAST=tiles.least,
        FORM=FORMS.get(kv_cache.dtype, f"int{form['BITS']}"),
        **form,
        SINKS=sinks is not None,
        EARLY=early,
        num_warps=4,
        maxnreg=128,
        launch_pdl=early,
    )
    return True


def fits(q: Tensor, kv_cache: Tensor) -> bool:
    """Whether the kernel takes such tensors: weights times scales are too small for float16."""
    block_tokens, row_bytes = kv_cache.shape[3:]
    size, group = q.shape[2], q.shape[1] // kv_cache.shape[2]
    shapes = block_tokens in (8, 16, 32, 64) and size in (64, 128) and group <= GREATEST
    return shapes and q.dtype == torch.bfloat16 and row_bytes * kv_cache.element_size() <= size


def rows_of(kv_cache: Tensor) -> TensorDescriptor:
    """The copy engine's view of the codes, one plane of a block at a time."""
    rows = kv_cache.view(torch.uint8).view(-1, kv_cache.shape[4])
    block = list(kv_cache.shape[3:])
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.uint8)
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), block, layout)


def params_of(kv_params: Tensor) -> TensorDescriptor:
    """The copy engine's view of scales and zeros, as words: one plane of a block at a time.

    Copies go to multiples of 128 bytes, so with those of a small block come those of the next ones.
    """
    block_tokens = kv_params.shape[3]
    words = kv_params.view(torch.int32).view(-1, block_tokens)
    block = [max(1, 32 // block_tokens), block_tokens]
    layout = gl.NVMMASharedLayout(0, 32, 2)
    return TensorDescriptor(words, list(words.shape), list(words.stride()), block, layout)
