"""Triton kernel of paged_decode_attention: one launch for rotation, write, attention and its sum.

How a sequence's keys are split follows from its own kv_len: splits of SPLIT keys, or of the
smallest multiple of SPLIT that makes at most `max_splits` of them. A fixed number of programs walks
over (split, sequence, key head), all of the first splits first, so the launch depends on shapes
alone and no sum depends on the batch. Whoever finishes the last split of a sequence and head adds
up all of them, always in the same order.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..online_softmax import LOG2_E, LOWEST, fold

SPLIT = 256

# Splits that wait for each other, at most: (sequence, key head) pairs of a launch.
PAIRS = 1 << 16


@triton.jit
def _rotated(x, cos, sin, column, tile, HALF: tl.constexpr):
    """Rows of heads at pointers `x` [..., 1], rotated, in float32."""
    other = tl.where(column < HALF, column + HALF, column - HALF)
    straight = tl.load(x + column, tile, other=0).to(tl.float32)
    crossed = tl.load(x + other, tile, other=0).to(tl.float32)
    return straight * cos + crossed * tl.where(column < HALF, -sin, sin)


@triton.jit
def _sum_splits(
    parts, peaks, first, used, out, tile_row, column,
    splits, GROUP: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Adds up splits first .. first + used - 1 of one sequence and key head, head by head."""
    split = first + tl.arange(0, SLOTS)
    exists = split < first + used
    tile = exists[:, None] & (column < D)[None, :]
    for head in tl.static_range(GROUP):
        part = (tile_row + head) * splits + split
        peak = tl.load(peaks + part * 2, exists, other=LOWEST, cache_modifier=".cg")
        total = tl.load(peaks + part * 2 + 1, exists, other=0, cache_modifier=".cg")
        acc = tl.load(
            parts + part[:, None] * D + column[None, :], tile, other=0, cache_modifier=".cg"
        )
        weight = tl.where(exists, tl.exp2(peak - tl.max(peak, 0)), 0)
        result = tl.sum(acc * weight[:, None], 0) / tl.sum(total * weight, 0)
        place = out + (tile_row + head) * D + column
        tl.store(place, result.to(out.dtype.element_ty), column < D)


@triton.jit
def _attend_split(
    q, k, v, cos_sin, positions, slot_mapping, cache, block_tables, slots, length, out, parts,
    peaks, arrivals, scale, window, strides, kv_heads, splits, split, sequence, head,
    GROUP: tl.constexpr, BLOCK_TOKENS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, MAX_SPLITS: tl.constexpr, SLOTS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """One split of one sequence and key head, if it has visible keys; zeros for padding."""
    q_strides, k_strides, v_strides, angle_stride, table_stride = strides
    keys = tl.maximum(tl.cdiv(length, SPLIT * MAX_SPLITS), 1) * SPLIT
    first = tl.maximum(length - window, 0) // keys
    last = tl.maximum(length - 1, 0) // keys
    if (split >= first) & (split <= last):
        row = tl.arange(0, ROWS)
        column = tl.arange(0, COLUMNS)
        inside = column < D
        tile = (row < GROUP)[:, None] & inside[None, :]
        sequence = sequence.to(tl.int64)
        HALF: tl.constexpr = D // 2
        angles = cos_sin + tl.load(positions + sequence).to(tl.int64) * angle_stride
        cos = tl.load(angles + column % HALF, inside, other=0)
        sin = tl.load(angles + HALF + column % HALF, inside, other=0)
        rows = q + sequence * q_strides[0] + (head * GROUP + row) * q_strides[1]
        queries = _rotated(
            rows[:, None], cos[None, :], sin[None, :], column[None, :], tile, HALF
        ).to(q.dtype.element_ty)

        # The newest key and value start the running softmax of the last split: they go to the
        # cache, but nobody waits until they can be read from there.
        kind = cache.dtype.element_ty
        source = k + sequence * k_strides[0] + head * k_strides[1]
        new_key = _rotated(source, cos, sin, column, inside, HALF).to(kind)
        source = v + sequence * v_strides[0] + head * v_strides[1]
        new_value = tl.load(source + column, inside, other=0).to(kind)
        newest = (split == last) & (length > 0)
        place = tl.load(slot_mapping + sequence)
        if newest & (place >= 0):
            block = (place // BLOCK_TOKENS).to(tl.int64)
            target = cache + ((block * 2 * kv_heads + head) * BLOCK_TOKENS) * D
            target += place % BLOCK_TOKENS * D + column
            tl.store(target, new_key, inside)
            tl.store(target + kv_heads * BLOCK_TOKENS * D, new_value, inside)
        score = tl.sum(queries.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale
        peak = tl.where(newest, score, LOWEST)
        total = tl.zeros((ROWS,), tl.float32) + tl.where(newest, 1.0, 0.0)
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        acc += tl.where(newest, new_value.to(tl.float32), 0.0)[None, :]

        table = block_tables + tl.load(slots + sequence).to(tl.int64) * table_stride
        state = acc, peak, total
        begin = tl.maximum(split * keys, length - window)
        end = tl.minimum((split + 1) * keys, length - 1)
        for at in range(begin, end, KEYS):
            key = at + tl.arange(0, KEYS)
            exists = key < end
            state = fold(
                queries, state, cache, table, (kv_heads, head), key, exists, exists[None, :],
                scale, True, BLOCK_TOKENS, D, COLUMNS,
            )  # fmt: skip
        acc, peak, total = state
        pair = sequence * kv_heads + head
        query_row = pair * GROUP + row
        if first == last:
            result = acc / tl.where(total > 0, total, 1)[:, None]
            place = out + query_row[:, None] * D + column[None, :]
            tl.store(place, result.to(out.dtype.element_ty), tile)
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
                    parts, peaks, first, used, out, pair * GROUP, column, splits, GROUP, D, SLOTS,
                )  # fmt: skip


@triton.jit
def _attend(
    q, k, v, cos_sin, positions, slot_mapping, cache, block_tables, slots, kv_len, out, parts,
    peaks, arrivals, scale, window, strides, kv_heads, sequences, splits,
    GROUP: tl.constexpr, BLOCK_TOKENS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, MAX_SPLITS: tl.constexpr, SLOTS: tl.constexpr,
    SPLIT: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if SEQUENCES == 0:  # a program for each item
        items = program + 1
    else:
        every = tl.arange(0, SEQUENCES)
        longest = tl.max(tl.load(kv_len + every, every < sequences, other=0), 0)
        items = tl.maximum(tl.minimum(tl.cdiv(longest, SPLIT), splits), 1) * sequences * kv_heads
    for item in tl.range(program, items, tl.num_programs(0), num_stages=1):
        head = item % kv_heads
        sequence = item // kv_heads % sequences
        split = item // (kv_heads * sequences)
        length = tl.load(kv_len + sequence)
        _attend_split(
            q, k, v, cos_sin, positions, slot_mapping, cache, block_tables, slots, length, out,
            parts, peaks, arrivals, scale, window, strides, kv_heads, splits, split, sequence, head,
            GROUP, BLOCK_TOKENS, D, COLUMNS, ROWS, KEYS, MAX_SPLITS, SLOTS, SPLIT,
        )  # fmt: skip


class _Tiles(NamedTuple):
    """Launch constants: keys of a tile, stages of its pipeline, and programs of a processor."""

    keys: int
    stages: int
    resident: int


def _tiles(dtype: torch.dtype, size: int) -> _Tiles:
    if dtype == torch.float32:
        return _Tiles(32, 1, 2)  # no tensor cores: larger tiles spill registers
    if size > 128:
        return _Tiles(64, 2, 1)
    return _Tiles(64, 3, 2)


@lru_cache(maxsize=16)
def _processors(device: torch.device) -> int:
    """Streaming multiprocessors; few where there are none, so that a program takes many items."""
    if device.type != "cuda":
        return 3
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache(maxsize=16)
def _arrivals(device: torch.device) -> Tensor:
    """Finished splits of each (sequence, key head): 0 between launches, which share one stream."""
    return torch.zeros(PAIRS, dtype=torch.int32, device=device)


def paged_decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
) -> Tensor:
    """See the public function."""
    sequences, heads, size = q.shape
    _, _, kv_heads, block_tokens, _ = kv_cache.shape
    if sequences * kv_heads > PAIRS:
        raise ValueError(f"{sequences} sequences of {kv_heads} key heads; {PAIRS} pairs at most")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    tiles = _tiles(q.dtype, size)
    programs = _processors(q.device) * tiles.resident
    capacity = block_tables.shape[1] * block_tokens
    # One long sequence fills the device once.
    max_splits = max(programs // kv_heads, 1)
    splits = max(min(triton.cdiv(capacity, SPLIT), max_splits), 1)
    items = splits * sequences * kv_heads
    parts = torch.empty((sequences, heads, splits, size), dtype=torch.float32, device=q.device)
    peaks = torch.empty((sequences, heads, splits, 2), dtype=torch.float32, device=q.device)
    strides = (
        q.stride()[:2], k.stride()[:2], v.stride()[:2], cos_sin.stride(0), block_tables.stride(0),
    )  # fmt: skip
    if sequences:
        _attend[(min(items, programs),)](
            q,
            k,
            v,
            cos_sin,
            positions,
            slot_mapping,
            kv_cache,
            block_tables,
            slots,
            kv_len,
            out,
            parts,
            peaks,
            _arrivals(q.device),
            scale * LOG2_E,
            window or capacity,
            strides,
            kv_heads,
            sequences,
            splits,
            GROUP=heads // kv_heads,
            BLOCK_TOKENS=block_tokens,
            D=size,
            COLUMNS=max(16, triton.next_power_of_2(size)),
            ROWS=max(16, triton.next_power_of_2(heads // kv_heads)),
            KEYS=tiles.keys,
            MAX_SPLITS=max_splits,
            SLOTS=triton.next_power_of_2(max_splits),
            SPLIT=SPLIT,
            SEQUENCES=0 if items <= programs else triton.next_power_of_2(sequences),
            num_warps=4,
            num_stages=tiles.stages,
        )
    return out
