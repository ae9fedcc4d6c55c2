"""Kernel of paged_decode_attention for Hopper GPUs and quantized caches, in Gluon.

Shares and ring are those of `hopper`. The copying warp brings codes as they are stored; four warps
compute, each with keys of its own in every tile, a running softmax and sums of its own. So warps
exchange nothing before a pair ends. They make float16 of codes in registers, where both products
have their operands: keys, or columns of values, are rows, and a group's query heads are columns.
The products are those of single warps, since a warp group's have 64 rows of one operand.

Lanes read words of two codes (of 4 bits, four), the matrix loads of shared memory give them to the
lanes that need them, and each operand has its elements in the order in which words come: see
`_apart`, `_turned`. Weights become an operand by one transposition between the lanes.

Of integers the products take codes, less half of their range: both are exact in float16. With
x = code * scale + zero, a score is scale * (q . codes) + zero * sum(q), and a weighted sum of
values is that of codes with weights * scale, plus the sum of weights * zero, all in float32. So a
scale multiplies once per key and head, not once per element. Queries are divided by a power of two
that makes them small enough for float16.

The newest key and value are quantized and written here, but are not read back: they begin the
running softmax of the first warp of the program that has the pair's last tile.
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
    mma_v2,
)
from triton.language.extra.cuda import gdc_wait

from ..device import arrivals, early_launch, power_of_two, processors
from ..hopper import ATOM, Rule, as_blocks, barrier, fits, make_bars
from ..kv_quantization_hopper import (
    code_blocks,
    form_of,
    normalized,
    numbers_of,
    param_blocks,
    scales_and_zeros,
    slot_of,
)
from ..kv_quantization_triton import codes, parameters, saturated, stored_as
from ..online_softmax import LOG2_E, LOWEST, first_seen
from .hopper import GREATEST, Memory, put_pair, put_queries, rotation
from .hopper_copy import copy_share
from .shares import owner_of, part_at, share_of, tiles_in
from .splits import PAIRS

WARPS = gl.constexpr(4)  # of the group that computes


@gluon.constexpr_function
def _layouts(keys, words, block_tokens):
    """Layouts of a tile in which no element has to leave its thread, since a warp has its own keys.

    Of the codes of keys and of values, words of two bytes [keys, words], and of the parameters of
    keys, [pages, block_tokens].
    """
    own = keys // WARPS.value
    few = [[1 << bit, 0] for bit in range(4, own.bit_length() - 1)]  # keys of a warp past 16
    many = [[0, 1 << bit] for bit in range(3, words.bit_length() - 1)]
    warps = [[own, 0], [2 * own, 0]]
    rows, columns = [[1, 0], [2, 0], [4, 0]], [[0, 1], [0, 2], [0, 4]]
    key_registers, value_registers = [columns[0], [8, 0]], [rows[0], [8, 0]]
    at = [[key // block_tokens, key % block_tokens] for key in [1 << bit for bit in range(8)]]
    count = keys.bit_length() - 1
    return (
        gl.DistributedLinearLayout(
            key_registers + many + few, columns[1:] + rows, warps, [], [keys, words]
        ),
        gl.DistributedLinearLayout(
            value_registers + many + few, rows[1:] + columns, warps, [], [keys, words]
        ),
        gl.DistributedLinearLayout(
            at[3 : count - 2], [[0, 0], [0, 0], *at[:3]], at[count - 2 : count], [],
            [keys // block_tokens, block_tokens],
        ),
    )  # fmt: skip


@gluon.jit
def _apart(numbers, LAYOUT: gl.constexpr):
    """[KEYS, D] -> [WARPS, keys of a warp, D], operand of a product over D, in its order: of 16
    elements the even ones first, since words of two bytes become two pairs of every second one."""
    KEYS: gl.constexpr = numbers.shape[0]
    D: gl.constexpr = numbers.shape[1]
    parts = numbers.reshape([WARPS, KEYS // WARPS, D // 16, 8, 2]).permute((0, 1, 2, 4, 3))
    whole = parts.reshape([WARPS, KEYS // WARPS, D])
    return gl.convert_layout(whole, LAYOUT, assert_trivial=True)


@gluon.jit
def _turned(numbers, LAYOUT: gl.constexpr):
    """[KEYS, D] -> [WARPS, D, keys of a warp], operand of a product over keys, whose rows have the
    order of `_apart`."""
    KEYS: gl.constexpr = numbers.shape[0]
    D: gl.constexpr = numbers.shape[1]
    parts = numbers.reshape([WARPS, KEYS // WARPS, D // 16, 8, 2]).permute((0, 2, 4, 3, 1))
    return gl.convert_layout(parts.reshape([WARPS, D, KEYS // WARPS]), LAYOUT, assert_trivial=True)


@gluon.jit
def _as_operand(weights, LAYOUT: gl.constexpr):
    """Weights [WARPS, keys, heads] float16 in the layout of a sum -> in that of an operand.

    Each 8 x 8 of them is transposed between the lanes of a warp, and so named the other way round.
    """
    KEYS: gl.constexpr = weights.shape[1]
    HEADS: gl.constexpr = weights.shape[2]
    squares = weights.reshape([WARPS, KEYS // 8, 8, HEADS // 8, 8])
    squares = gl.inline_asm_elementwise(
        "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "=r,r", (squares,), gl.float16, True, 2
    )
    named = squares.permute((0, 1, 4, 3, 2)).reshape([WARPS, KEYS, HEADS])
    return gl.convert_layout(named, LAYOUT, assert_trivial=True)


@gluon.jit
def _log2(x):
    return gl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=r,r", (x,), gl.float32, True, 1
    )


@gluon.jit
def _params(
    ring, stage, BLOCK_TOKENS: gl.constexpr, MIDDLE: gl.constexpr,
    P_LAYOUT: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """(scales, zeros of codes less MIDDLE) of a tile's keys or values, [WARPS, keys] float32."""
    KEYS: gl.constexpr = ring.shape[1] * BLOCK_TOKENS
    words = ring.index(stage).slice(0, BLOCK_TOKENS, 1).load(P_LAYOUT)
    words = words.reshape([WARPS, KEYS // WARPS])
    words = gl.convert_layout(words, LAYOUT, assert_trivial=True)
    scale, zero = scales_and_zeros(words)
    return scale, zero + MIDDLE * scale


@gluon.jit
def _tile_params(
    rings, stage, seen,
    BLOCK_TOKENS: gl.constexpr, MIDDLE: gl.constexpr, P_LAYOUT: gl.constexpr,
):  # fmt: skip
    """(scales, zeros) of a tile's keys and those of its values, each [WARPS, keys, 1].

    Of values that are not seen they are 0: NaN would not be silenced by a weight of 0.
    """
    LAYOUT: gl.constexpr = seen.type.layout
    key_scales, key_zeros = _params(rings[0], stage, BLOCK_TOKENS, MIDDLE, P_LAYOUT, LAYOUT)
    scales, zeros = _params(rings[1], stage, BLOCK_TOKENS, MIDDLE, P_LAYOUT, LAYOUT)
    scales, zeros = gl.where(seen, scales, 0.0), gl.where(seen, zeros, 0.0)
    return key_scales[:, :, None], key_zeros[:, :, None], scales[:, :, None], zeros[:, :, None]


@gluon.jit
def _scores(products, seen, unit, query_sums, params, BITS: gl.constexpr):
    """Scores of a tile, and what the softmax takes the peak of.

    Weights times scales are an operand in float16. So its peak is that of scores plus log2(scale),
    and none exceeds 1.
    """
    scores = products * unit[:, None, :]
    if BITS != 0:
        scores = scores * params[0]
        scores += query_sums[:, None, :] * params[1]
    scores = gl.where(seen[:, :, None], scores, float("-inf"))
    if BITS != 0:
        return scores, scores + _log2(params[2])
    else:  # noqa: RET505
        return scores, scores


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
    """The newest value [D] as the cache now has it, in the order of `_apart`."""
    place = gl.arange(0, D, L)
    column = place // 16 * 16 + place % 8 * 2 + place // 8 % 2
    x = gl.load(value + column).to(gl.float32)
    crossed = x
    if BITS == 4:
        crossed = gl.load(value + (column + D // 2) % D).to(gl.float32)
    return _put(x, crossed, column, row, memory, BITS, D, LARGEST)


@gluon.jit
def _put_operand(rotated, queries, D: gl.constexpr):
    """Rotated queries [HEADS, D] as an operand [HEADS, D] float16 into shared memory, in the order
    of `_apart`; returns the powers of two by which they are too small."""
    HEADS: gl.constexpr = rotated.shape[0]
    small, power = normalized(rotated)
    parts = small.reshape([HEADS, D // 16, 8, 2]).permute((0, 1, 3, 2))
    queries.store(parts.reshape([HEADS, D]))
    return power


@gluon.jit
def _sums_of_warps(acc, peak, weight_sums, zero_sums, BITS: gl.constexpr):
    """(of values [D, HEADS], peaks, of weights) over the keys of all warps."""
    D: gl.constexpr = acc.shape[1]
    HEADS: gl.constexpr = acc.shape[2]
    top = gl.max(peak, 0)
    shrink = gl.exp2(peak - top[None, :])
    total = gl.sum(gl.sum(weight_sums, 1) * shrink, 0)
    if BITS != 0:
        acc += gl.sum(zero_sums, 1)[:, None, :]
    acc = gl.sum(acc * shrink[:, None, :], 0)
    acc = acc.reshape([D // 16, 2, 8, HEADS]).permute((0, 2, 1, 3)).reshape([D, HEADS])
    L: gl.constexpr = gl.SliceLayout(0, acc.type.layout)
    return acc, gl.convert_layout(top, L), gl.convert_layout(total, L)


@gluon.jit
def _free(bar):
    """Tells the copying warp that a tile may be overwritten, which all warps have loaded.

    The fence waits for the loads. Zeros for blocks that do not exist come from no memory, so they
    would overtake the last ones.
    """
    fence_async_shared()
    barrier()
    mbarrier.arrive(bar, count=1)


@gluon.jit
def _sum(
    qkv, angles, slot_mapping, memory, kv_len, outs, rings, bars, operands, share, kv_heads, window,
    scale, strides,
    GROUP: gl.constexpr, HEADS: gl.constexpr, BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr,
    D: gl.constexpr, STAGES: gl.constexpr, FORM: gl.constexpr, BITS: gl.constexpr,
    LARGEST: gl.constexpr, ALIGNED: gl.constexpr, SINKS: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """The warp group: softmax and sums over all tiles of this program's share."""
    q, k, v = qkv
    cos_sin, angle_stride = angles
    full, empty = bars
    key_words, value_words, key_params, value_params = rings
    query_blocks, rotated_queries, queries = operands
    begin, end, sequence, base, total, programs, extra, _ = share
    OWN: gl.constexpr = KEYS // WARPS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    B_LAYOUT: gl.constexpr = gl.DotOperandLayout(1, S_LAYOUT, 2)
    layouts: gl.constexpr = _layouts(KEYS, key_words.shape[2], BLOCK_TOKENS)
    K_LAYOUT: gl.constexpr = layouts[0]
    V_LAYOUT: gl.constexpr = layouts[1]
    P_LAYOUT: gl.constexpr = layouts[2]
    R_LAYOUT: gl.constexpr = gl.SliceLayout(2, S_LAYOUT)  # of a tile's keys [WARPS, OWN]
    H_LAYOUT: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)  # [WARPS, HEADS]
    HEAD: gl.constexpr = gl.SliceLayout(0, H_LAYOUT)
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    MIDDLE: gl.constexpr = 128.0 if BITS == 8 else 8.0
    blank = gl.zeros([WARPS, OWN, HEADS], gl.float32, S_LAYOUT)
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, R_LAYOUT))
    own = gl.arange(0, OWN, gl.SliceLayout(0, R_LAYOUT))
    key_row = warp[:, None] * OWN + own[None, :]
    value_row = gl.arange(0, KEYS, gl.SliceLayout(1, V_LAYOUT))
    query_row = gl.arange(0, HEADS, gl.SliceLayout(1, L))
    first_warp = (gl.arange(0, WARPS, gl.SliceLayout(1, H_LAYOUT)) == 0)[:, None]
    if EARLY:
        gdc_wait()
    at, done = begin, 0
    while at + extra < end:
        length = gl.load(kv_len + sequence)
        place = gl.load(slot_mapping + sequence)
        wide = sequence.to(gl.int64)
        first, tiles = tiles_in(length, window, KEYS, ALIGNED)
        oldest = first_seen(length - 1, window, ALIGNED)
        head, start, skipped, count = part_at(at, end, base, tiles, extra)
        turn = cos_sin + gl.maximum(length - 1, 0).to(gl.int64) * angle_stride
        x = q + wide * strides[0] + (head * GROUP + query_row) * strides[1]
        put_queries(x, turn, query_blocks, GROUP, HEADS, D)
        barrier()
        rotated = rotated_queries.load(L).to(gl.float32)
        power = _put_operand(rotated, queries, D)
        unit = gl.convert_layout(power, HEAD)[None, :] * scale
        query_sums = gl.convert_layout(gl.sum(rotated, 1), HEAD)[None, :] * scale
        barrier()
        acc = gl.zeros([WARPS, D, HEADS], gl.float32, S_LAYOUT)
        peak = gl.full([WARPS, HEADS], LOWEST, gl.float32, H_LAYOUT)
        weight_sums = gl.zeros([WARPS, OWN, HEADS], gl.float32, S_LAYOUT)
        zero_sums = gl.zeros([WARPS, OWN, HEADS], gl.float32, S_LAYOUT)
        if (skipped + count == tiles) & (length > 0):
            block = (place // BLOCK_TOKENS).to(gl.int64) * 2 * kv_heads + head
            row = block * BLOCK_TOKENS + place % BLOCK_TOKENS
            row = gl.where(place >= 0, row, -1)
            key = _newest_key(
                k + wide * strides[2] + head * strides[3], turn, row, memory, L, BITS, D, LARGEST
            )
            newest = gl.convert_layout(gl.sum(rotated * key, 1), HEAD)[None, :] * scale
            peak = gl.where(first_warp, newest, LOWEST)
            weight_sums = gl.where((key_row == 0)[:, :, None], 1.0, weight_sums)
            row = gl.where(place >= 0, row + kv_heads * BLOCK_TOKENS, -1)
            value = _newest_value(
                v + wide * strides[4] + head * strides[5], row, memory,
                gl.SliceLayout(0, R_LAYOUT), BITS, D, LARGEST,
            )  # fmt: skip
            acc = gl.where(first_warp[:, None, :], value[None, :, None], acc)
        column_operand = gl.zeros([WARPS, D, HEADS], gl.float16, B_LAYOUT)
        column_operand += queries.permute((1, 0)).load(gl.SliceLayout(0, B_LAYOUT))[None, :, :]
        for i in range(count):
            stage = done % STAGES
            mbarrier.wait(full.index(stage), done // STAGES & 1)
            keys = key_words.index(stage).load(K_LAYOUT)
            values = value_words.index(stage).load(V_LAYOUT)
            behind = (first + skipped + i) * KEYS
            key = behind + key_row
            seen = (key < length - 1) & (key >= oldest)
            params = seen, seen, seen, seen  # without scales and zeros nothing reads them
            if BITS != 0:
                params = _tile_params(
                    (key_params, value_params), stage, seen, BLOCK_TOKENS, MIDDLE, P_LAYOUT
                )
            elif skipped + i == tiles - 1:  # here values may be NaN
                exists = behind + value_row < length - 1
                values = gl.where(exists[:, None], values, 0)
            _free(empty.index(stage))
            done += 1
            products = mma_v2(_apart(numbers_of((keys,), FORM), A_LAYOUT), column_operand, blank)
            scores, lifted = _scores(products, seen, unit, query_sums, params, BITS)
            new_peak = gl.maximum(peak, gl.max(lifted, 1))
            weight = gl.exp2(scores - new_peak[:, None, :])
            shrink = gl.exp2(peak - new_peak)[:, None, :]
            peak = new_peak
            weight_sums = weight_sums * shrink + weight
            if BITS != 0:
                zero_sums = zero_sums * shrink + weight * params[3]
                weight = weight * params[2]
            turned = _turned(numbers_of((values,), FORM), A_LAYOUT)
            weights = _as_operand(weight.to(gl.float16), B_LAYOUT)
            acc = mma_v2(turned, weights, acc * shrink)
        owners = (
            owner_of(start + extra, total, programs),
            owner_of(start + extra + tiles - 1, total, programs),
        )
        put_pair(
            _sums_of_warps(acc, peak, weight_sums, zero_sums, BITS), outs,
            (wide * kv_heads + head, head), owners,
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
    D: gl.constexpr, WORDS: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr,
    LEAST: gl.constexpr, FORM: gl.constexpr, BITS: gl.constexpr, LARGEST: gl.constexpr,
    ALIGNED: gl.constexpr, SINKS: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    kind: gl.constexpr = qkv[0].dtype.element_ty
    share = share_of(kv_len, kv_heads, sequences, window, KEYS, SEQUENCES, LEAST, ALIGNED)
    PAGES: gl.constexpr = KEYS // BLOCK_TOKENS
    C_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, WORDS], gl.int16)
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, D], kind)
    H_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, ATOM], kind)
    O_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, D], gl.float16)
    rotated = gl.allocate_shared_memory(kind, [HEADS, D], Q_LAYOUT)
    query_blocks = as_blocks(rotated, D // ATOM, HEADS, ATOM, H_LAYOUT)
    queries = gl.allocate_shared_memory(gl.float16, [HEADS, D], O_LAYOUT)
    keys = gl.allocate_shared_memory(gl.int16, [STAGES, KEYS, WORDS], C_LAYOUT)
    values = gl.allocate_shared_memory(gl.int16, [STAGES, KEYS, WORDS], C_LAYOUT)
    B_LAYOUT: gl.constexpr = codes_desc.layout
    blocks = (
        as_blocks(keys, STAGES * PAGES, BLOCK_TOKENS, WORDS, B_LAYOUT),
        as_blocks(values, STAGES * PAGES, BLOCK_TOKENS, WORDS, B_LAYOUT),
    )
    descs, copied = (codes_desc,), (blocks,)
    key_params, value_params = keys, values
    TILE_BYTES: gl.constexpr = 2 * KEYS * (2 * WORDS if BITS == 0 else 2 * WORDS + 4)
    if BITS != 0:
        P_LAYOUT: gl.constexpr = params_desc.layout
        SLOT: gl.constexpr = slot_of(BLOCK_TOKENS)
        shape: gl.constexpr = [STAGES, PAGES, SLOT]
        key_params = gl.allocate_shared_memory(gl.int32, shape, P_LAYOUT)
        value_params = gl.allocate_shared_memory(gl.int32, shape, P_LAYOUT)
        some = (
            as_blocks(key_params, STAGES * PAGES, 1, SLOT, P_LAYOUT),
            as_blocks(value_params, STAGES * PAGES, 1, SLOT, P_LAYOUT),
        )
        descs, copied = (codes_desc, params_desc), (blocks, some)
    bars = make_bars(STAGES, 1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_sum, (
                qkv, angles, slot_mapping, memory, kv_len, outs,
                (keys, values, key_params, value_params), bars,
                (query_blocks, rotated, queries), share, kv_heads, window, scale, strides,
                GROUP, HEADS, BLOCK_TOKENS, KEYS, D, STAGES, FORM, BITS, LARGEST, ALIGNED, SINKS,
                EARLY,
            )),
            (copy_share, (
                descs, tables, kv_len, outs[0], copied, bars, share, kv_heads, sequences, window,
                nowhere, GROUP, BLOCK_TOKENS, KEYS, D, 1, TILE_BYTES, STAGES, ALIGNED, EARLY,
            )),
        ],
        [1],
        [40],
    )  # fmt: skip


class Tiles(NamedTuple):
    """Keys of a tile, tiles of a program's ring, tiles of a share at least, programs resident, and
    registers of a thread on average."""

    keys: int
    stages: int
    least: int
    resident: int
    registers: int


def tiles_of(size: int, row_bytes: int) -> Tiles:
    """Launch constants for heads of `size` in rows of `row_bytes`."""
    return Tiles(64, 4, 2, 2, 128) if row_bytes >= 128 else Tiles(64, 6, 2, 2, 128)


def launch(tensors: tuple[Tensor, ...], memory: Memory, rule: Rule, stored: bool) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched.

    `tensors` = (q, k, v, cos_sin, slot_mapping, out), `memory` = (kv_cache, block_tables, slots,
    kv_len, kv_params), `rule` as in `Rule`. It takes none that are `stored`.
    """
    q, k, v, cos_sin, slot_mapping, out = tensors
    scale, window, aligned, sinks = rule
    kv_cache, block_tables, slots, kv_len, kv_params = memory
    if stored or not fits(q, kv_cache) or q.shape[1] > GREATEST * kv_cache.shape[2]:
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
    codes_view = code_blocks(kv_cache)
    _attend[(programs,)](
        codes_view,
        codes_view if kv_params is None else param_blocks(kv_params),
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
        WORDS=row_bytes // 2,
        STAGES=tiles.stages,
        # Of 32 a warp adds up the tiles by itself.
        SEQUENCES=32 if sequences <= 32 else max(128, power_of_two(sequences)),
        LEAST=tiles.least,
        FORM=form_of(kv_cache, size),
        **form,
        ALIGNED=aligned and window > 0,
        SINKS=sinks is not None,
        EARLY=early,
        num_warps=4,
        maxnreg=tiles.registers,
        launch_pdl=early,
    )
    return True
