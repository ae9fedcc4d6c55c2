"""Triton kernel of paged_decode_attention: one launch for rotation, write, attention and its sum.

A program takes one (split, sequence, key head) that the tables have room for. The program that
finishes the last split of a sequence and head sums all of them, always in the same order: no sum
depends on the batch.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import arrivals, is_hopper, power_of_two
from ..kv_quantization_triton import codes, parameters, saturated, stored_as
from ..online_softmax import (
    LOWEST,
    bias_of,
    constants,
    fold,
    scored,
    with_nearest_bias,
    with_sink,
)
from ..op import ArchKernel
from .splits import PAIRS, SPLIT, plan

HOPPER = ArchKernel(f"{__package__}.hopper", is_hopper)
HOPPER_QUANTIZED = ArchKernel(f"{__package__}.hopper_quantized", is_hopper)
SUMMED = 16  # parts that are read together when they are summed up: more would not fit registers


@triton.jit
def _rotated(x, cos, sin, column, tile, HALF: tl.constexpr):
    """Rows of heads at pointers `x` [..., 1], rotated, in float32."""
    other = tl.where(column < HALF, column + HALF, column - HALF)
    straight = tl.load(x + column, tile, other=0).to(tl.float32)
    crossed = tl.load(x + other, tile, other=0).to(tl.float32)
    return straight * cos + crossed * tl.where(column < HALF, -sin, sin)


@triton.jit
def _put(
    memory, row, writes, x, crossed, column,
    D: tl.constexpr, BITS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Stores the key or value x [COLUMNS] in `row` if `writes`; returns it as it is stored.

    Both are float32. `crossed` are the elements half a head away, of 4 bits only.
    """
    cache, kv_params = memory
    inside = column < D
    if BITS == 0:
        stored = saturated(x, cache.dtype.element_ty, LARGEST)
        if writes:
            tl.store(cache + row * D + column, stored, inside)
        return stored.to(tl.float32)
    else:  # noqa: RET505
        low = tl.min(tl.where(inside, x, float("inf")), 0)
        high = tl.max(tl.where(inside, x, float("-inf")), 0)
        scale, zero = parameters(low, high, BITS)
        code = codes(x, scale, zero, BITS)
        if writes:
            tl.store(kv_params + row * 2, scale)
            tl.store(kv_params + row * 2 + 1, zero)
            if BITS == 8:
                tl.store(cache + row * D + column, code, inside)
            else:
                pair = code | codes(crossed, scale, zero, BITS) << 4
                tl.store(cache + row * (D // 2) + column, pair, column < D // 2)
        return code.to(tl.float32) * scale.to(tl.float32) + zero.to(tl.float32)


@triton.jit
def _sum_splits(
    parts, peaks, first, used, out, sinks, query_head, tile_row, column,
    splits, GROUP: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Adds up splits first .. first + used - 1 of one sequence and key head, head by head.

    `query_head` is the group's first, or `tile_row` for sinks of each query. A sink joins here,
    once, whatever the number of splits.
    """
    inside = column < D
    for head in range(GROUP):
        peak = tl.full((), LOWEST, tl.float32)
        total = tl.full((), 0.0, tl.float32)
        acc = tl.zeros(column.shape, tl.float32)
        for at in range(0, used, SLOTS):
            split = first + at + tl.arange(0, SLOTS)
            exists = split < first + used
            tile = exists[:, None] & inside[None, :]
            part = (tile_row + head) * splits + split
            some_peak = tl.load(peaks + part * 2, exists, other=LOWEST, cache_modifier=".cg")
            some_total = tl.load(peaks + part * 2 + 1, exists, other=0, cache_modifier=".cg")
            pointers = parts + part[:, None] * D + column[None, :]
            some = tl.load(pointers, tile, other=0, cache_modifier=".cg")
            new_peak = tl.maximum(peak, tl.max(some_peak, 0))
            weight, shrink = tl.exp2(some_peak - new_peak), tl.exp2(peak - new_peak)
            acc = acc * shrink + tl.sum(some * weight[:, None], 0)
            total = total * shrink + tl.sum(some_total * weight, 0)
            peak = new_peak
        total = with_sink(total, peak, sinks, query_head + head, True, SINKS)
        place = out + (tile_row + head) * D + column
        tl.store(place, (acc / total).to(out.dtype.element_ty), inside)


@triton.jit
def _attend_split(
    q, k, v, cos_sin, positions, slot_mapping, memory, block_tables, slots, length, sinks, biases,
    out, parts, peaks, arrivals, scale, softcap, window, strides, kv_heads, splits, split, sequence,
    head,
    GROUP: tl.constexpr, BLOCK_TOKENS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, MAX_SPLITS: tl.constexpr, SLOTS: tl.constexpr,
    SPLIT: tl.constexpr, BITS: tl.constexpr, LARGEST: tl.constexpr, CAPPED: tl.constexpr,
    SINKS: tl.constexpr, BY_QUERY: tl.constexpr, STORED: tl.constexpr, ALIGNED: tl.constexpr,
    ALIBI: tl.constexpr, EXTENT: tl.constexpr,
):  # fmt: skip
    """One split of one sequence and key head, if it has visible keys; zeros for padding.

    STORED: the newest key and value are in the cache.
    """
    q_row, q_head, k_row, k_head, v_row, v_head, angle_stride, table_stride = strides
    keys = tl.maximum(tl.cdiv(length, SPLIT * MAX_SPLITS), 1) * SPLIT
    if ALIGNED:  # of this sequence
        window = tl.maximum(length - 1, 0) % window + 1
    first = tl.maximum(length - window, 0) // keys
    last = tl.maximum(length - 1, 0) // keys
    if (split >= first) & (split <= last):
        row = tl.arange(0, ROWS)
        column = tl.arange(0, COLUMNS)
        inside = column < D
        tile = (row < GROUP)[:, None] & inside[None, :]
        HALF: tl.constexpr = D // 2
        angles = cos_sin + tl.load(positions + sequence).to(tl.int64) * angle_stride
        cos = tl.load(angles + column % HALF, inside, other=0)
        sin = tl.load(angles + HALF + column % HALF, inside, other=0)
        rows = q + sequence * q_row + (head * GROUP + row) * q_head
        queries = _rotated(
            rows[:, None], cos[None, :], sin[None, :], column[None, :], tile, HALF
        ).to(q.dtype.element_ty)

        if STORED:
            peak = tl.full((ROWS,), LOWEST, tl.float32)
            total = tl.zeros((ROWS,), tl.float32)
            acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        else:
            # The newest key and value start the running softmax of the last split: they go to the
            # cache, but nobody waits until they can be read from there.
            newest = (split == last) & (length > 0)
            place = tl.load(slot_mapping + sequence)
            writes = newest & (place >= 0)
            block = (place // BLOCK_TOKENS).to(tl.int64)
            stored = (block * 2 * kv_heads + head) * BLOCK_TOKENS + place % BLOCK_TOKENS
            other = tl.where(column < HALF, column + HALF, column - HALF)
            source = k + sequence * k_row + head * k_head
            new_key = _rotated(source, cos, sin, column, inside, HALF)
            crossed = new_key
            if BITS == 4:
                crossed = _rotated(source, cos, sin, other, inside, HALF)
            new_key = _put(memory, stored, writes, new_key, crossed, column, D, BITS, LARGEST)
            new_key = new_key.to(q.dtype.element_ty).to(tl.float32)
            source = v + sequence * v_row + head * v_head
            new_value = tl.load(source + column, inside, other=0).to(tl.float32)
            crossed = new_value
            if BITS == 4:
                crossed = tl.load(source + other, inside, other=0).to(tl.float32)
            stored += kv_heads * BLOCK_TOKENS
            new_value = _put(memory, stored, writes, new_value, crossed, column, D, BITS, LARGEST)
            new_value = new_value.to(q.dtype.element_ty).to(tl.float32)
            product = tl.sum(queries.to(tl.float32) * new_key[None, :], 1)
            score = scored(product, scale, softcap, CAPPED)
            score = with_nearest_bias(score, biases, sequence, kv_heads, head, row, GROUP, EXTENT)
            peak = tl.where(newest, score, LOWEST)
            total = tl.zeros((ROWS,), tl.float32) + tl.where(newest, 1.0, 0.0)
            acc = tl.zeros((ROWS, COLUMNS), tl.float32)
            acc += tl.where(newest, new_value, 0.0)[None, :]

        table = block_tables + tl.load(slots + sequence).to(tl.int64) * table_stride
        state = acc, peak, total
        bias = bias_of(
            biases, sequence, head * GROUP + row, length - 1 + 0 * row, row < GROUP, kv_heads,
            GROUP, ALIBI, EXTENT,
        )  # fmt: skip
        begin = tl.maximum(split * keys, length - window)
        end = tl.minimum((split + 1) * keys, length if STORED else length - 1)
        for at in range(begin, end, KEYS):
            key = at + tl.arange(0, KEYS)
            exists = key < end
            state = fold(
                queries, state, memory, table, (kv_heads, head), key, exists, exists[None, :],
                scale, softcap, bias, CAPPED, ALIBI, EXTENT, True, BLOCK_TOKENS, BITS, D, COLUMNS,
            )  # fmt: skip
        acc, peak, total = state
        pair = sequence * kv_heads + head
        query_row = pair * GROUP + row
        if first == last:
            own = query_row if BY_QUERY else head * GROUP + row
            whole = with_sink(total, peak, sinks, own, row < GROUP, SINKS)
            result = acc / tl.where(whole > 0, whole, 1)[:, None]
            target = out + query_row[:, None] * D + column[None, :]
            tl.store(target, result.to(out.dtype.element_ty), tile)
        else:
            part = query_row * splits + split
            tl.store(parts + part[:, None] * D + column[None, :], acc, tile)
            tl.store(peaks + part * 2, peak, row < GROUP)
            tl.store(peaks + part * 2 + 1, total, row < GROUP)
            tl.debug_barrier()  # all threads' parts are written before the arrival is announced
            used = last - first + 1
            arrived = tl.atomic_add(arrivals + pair, 1, sem="acq_rel")
            if arrived == used - 1:
                tl.store(arrivals + pair, 0)  # for the next launch
                _sum_splits(
                    parts, peaks, first, used, out, sinks, (pair if BY_QUERY else head) * GROUP,
                    pair * GROUP, column, splits, GROUP, D, SLOTS, SINKS,
                )  # fmt: skip


@triton.jit(do_not_specialize=["sequences", "splits"])
def _attend(
    q, k, v, cos_sin, positions, slot_mapping, cache, kv_params, block_tables, slots, kv_len, sinks,
    biases, out, parts, peaks, arrivals, scale, softcap, window, strides, kv_heads, sequences,
    splits,
    GROUP: tl.constexpr, BLOCK_TOKENS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, MAX_SPLITS: tl.constexpr, SLOTS: tl.constexpr,
    SPLIT: tl.constexpr, BITS: tl.constexpr, LARGEST: tl.constexpr, CAPPED: tl.constexpr,
    SINKS: tl.constexpr, BY_QUERY: tl.constexpr, STORED: tl.constexpr, ALIGNED: tl.constexpr,
    ALIBI: tl.constexpr, EXTENT: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    head = item % kv_heads
    sequence = (item // kv_heads % sequences).to(tl.int64)
    split = item // (kv_heads * sequences)
    length = tl.load(kv_len + sequence)
    _attend_split(
        q, k, v, cos_sin, positions, slot_mapping, (cache, kv_params), block_tables, slots, length,
        sinks, biases, out, parts, peaks, arrivals, scale, softcap, window, strides, kv_heads,
        splits, split, sequence, head, GROUP, BLOCK_TOKENS, D, COLUMNS, ROWS, KEYS, MAX_SPLITS,
        SLOTS, SPLIT, BITS, LARGEST, CAPPED, SINKS, BY_QUERY, STORED, ALIGNED, ALIBI, EXTENT,
    )  # fmt: skip


class _Tile(NamedTuple):
    """Launch constants: keys of a tile, warps, and stages of the software pipeline."""

    keys: int
    warps: int
    stages: int


def _tile(q: Tensor, kv_cache: Tensor) -> _Tile:
    size = q.shape[2]
    if q.dtype == torch.float32:  # no tensor cores: larger tiles spill registers
        return _Tile(16, 8, 1) if size > 128 else _Tile(32, 4, 1)
    if size > 256:  # more keys do not fit the shared memory of smaller GPUs
        return _Tile(32, 8, 2)
    if kv_cache.dtype.itemsize == 1:  # to convert a tile takes registers: larger ones spill
        return _Tile(32, 8, 2) if size > 128 else _Tile(64, 8, 3)
    return _Tile(64, 4, 2) if size > 128 else _Tile(128, 4, 3)


def paged_decode_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    kv_len: Tensor,
    scale: float,
    window: int = 0,
    out: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    kv_params: Tensor | None = None,
    aligned: bool = False,
    slopes: Tensor | None = None,
    rel_bias: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    sequences, heads, size = q.shape
    _, _, kv_heads, block_tokens, _ = kv_cache.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if not sequences:
        return out
    if sequences * kv_heads > PAIRS:
        raise ValueError(f"{sequences} sequences of {kv_heads} key heads; {PAIRS} pairs at most")
    capacity = block_tables.shape[1] * block_tokens
    group = heads // kv_heads
    stored = k is None or v is None
    k, v = (q if tensor is None else tensor for tensor in (k, v))
    tensors = q, k, v, cos_sin, slot_mapping, out
    memory = kv_cache, block_tables, slots, kv_len, kv_params
    hopper = HOPPER if kv_cache.dtype == q.dtype else HOPPER_QUANTIZED
    # The kernels for Hopper know no caps, no slopes, no biases, and no sinks of each query.
    biases = rel_bias if slopes is None else slopes
    by_query = sinks is not None and sinks.ndim == 2
    takes = not softcap and biases is None and not by_query
    rule = scale, window, aligned, sinks
    if takes and hopper.launch(q.device, tensors, memory, rule, stored):
        return out
    chosen = plan(q, kv_heads, capacity)
    rows = cos_sin.stride(0), block_tables.stride(0)
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *rows)
    tile = _tile(q, kv_cache)
    _attend[(chosen.splits * sequences * kv_heads,)](
        q,
        k,
        v,
        cos_sin,
        positions,
        slot_mapping,
        kv_cache,
        kv_cache if kv_params is None else kv_params,
        block_tables,
        slots,
        kv_len,
        kv_len if sinks is None else sinks,
        kv_len if biases is None else biases,
        out,
        chosen.parts,
        chosen.peaks,
        arrivals(q.device, PAIRS),
        *constants(scale, softcap),
        window or capacity,
        strides,
        kv_heads,
        sequences,
        chosen.splits,
        GROUP=group,
        BLOCK_TOKENS=block_tokens,
        D=size,
        COLUMNS=max(16, power_of_two(size)),
        ROWS=max(16, power_of_two(group)),
        KEYS=tile.keys,
        MAX_SPLITS=chosen.most,
        SLOTS=min(SUMMED, power_of_two(chosen.most)),
        SPLIT=SPLIT,
        STORED=stored,
        **stored_as(kv_cache, size),
        CAPPED=softcap > 0,
        SINKS=sinks is not None,
        BY_QUERY=by_query,
        ALIGNED=aligned and window > 0,
        ALIBI=slopes is not None,
        EXTENT=0 if rel_bias is None else rel_bias.shape[2],
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out
