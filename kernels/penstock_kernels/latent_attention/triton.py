"""Triton kernels of latent_attention: one for tiles of rows, one that adds up splits of the keys.

A program takes one tile of rows of one sequence, and one split of its keys. Rows are (query, head)
pairs, queries first: what is read of the cache serves as key and value of all of them.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import power_of_two, shared_bytes
from ..online_softmax import LOWEST, constants, log_total, with_sink
from .splits import SPLIT, plan

LARGE = 150 << 10  # bytes of shared memory of GPUs that take the largest tile
SUMMED = 16  # parts that are read together when they are summed up: more would not fit registers
WIDE = 512  # elements of a latent above which tiles are half as large


@triton.jit
def _chunk(query_start, kv_len, sequence, DECODE: tl.constexpr):
    """(first row of q, queries, tokens before them) of a sequence."""
    length = tl.load(kv_len + sequence)
    if DECODE:
        return sequence, 1, length - 1
    else:  # noqa: RET505
        start = tl.load(query_start + sequence)
        count = tl.load(query_start + sequence + 1) - start
        return start, count, length - count


@triton.jit
def _extent(tile, earlier, count, heads, splits, ROWS: tl.constexpr, SPLIT: tl.constexpr):
    """(keys that the last row of a tile sees, keys of each split)."""
    last = tl.minimum((tile * ROWS + ROWS - 1) // heads, count - 1)
    end = tl.maximum(earlier + last + 1, 0)
    return end, tl.maximum(tl.cdiv(end, splits * SPLIT), 1) * SPLIT


@triton.jit
def _fold(
    queries, state, cache, table, key, exists, visible, scale,
    MASKED: tl.constexpr, BLOCK_TOKENS: tl.constexpr, C: tl.constexpr, R: tl.constexpr,
    W: tl.constexpr, COLUMNS: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    """Folds the rows at positions `key` [N] into state = (acc [M, C], peak [M], total [M]).

    `queries` = ([M, COLUMNS] of the latent, [M, ROTATED]). `exists` [N] guards loads and `visible`
    [M, N] scores, both only if MASKED.
    """
    acc, peak, total = state
    latent_queries, rotated_queries = queries
    column = tl.arange(0, COLUMNS)
    turned = tl.arange(0, ROTATED)
    if MASKED:
        block = tl.load(table + key // BLOCK_TOKENS, exists, other=0).to(tl.int64)
    else:
        block = tl.load(table + key // BLOCK_TOKENS).to(tl.int64)
        exists = key >= 0  # all of them
    # Triton 3.6 takes (block * BLOCK_TOKENS + key % BLOCK_TOKENS) * W for a multiple of
    # BLOCK_TOKENS * W, and loads more bytes at a time than rows are aligned to.
    row = cache + block * (BLOCK_TOKENS * W) + key % BLOCK_TOKENS * W
    tile = exists[:, None] & (column < C)[None, :]
    latent = tl.load(row[:, None] + column[None, :], tile, other=0)
    if R > 0:
        tile = exists[None, :] & (turned < R)[:, None]
        rotated = tl.load(row[None, :] + C + turned[:, None], tile, other=0)
    products = tl.dot(latent_queries, tl.trans(latent), input_precision="ieee")
    if R > 0:
        products = tl.dot(rotated_queries, rotated, products, input_precision="ieee")
    scores = products * scale
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    weighted = weights.to(latent.dtype)
    acc = tl.dot(weighted, latent, acc * shrink[:, None], input_precision="ieee")
    return acc, new_peak, total * shrink + tl.sum(weights, 1)


@triton.jit(do_not_specialize=["splits", "tiles"])
def _attend_tile(
    q, cache, block_tables, slots, query_start, kv_len, sinks, out, lse, parts, peaks, scale,
    q_strides, table_stride, heads, tiles, splits,
    BLOCK_TOKENS: tl.constexpr, C: tl.constexpr, R: tl.constexpr, W: tl.constexpr,
    COLUMNS: tl.constexpr, ROTATED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    SPLIT: tl.constexpr, DECODE: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) % tiles
    split = tl.program_id(0) // tiles
    sequence = tl.program_id(1)
    start, count, earlier = _chunk(query_start, kv_len, sequence, DECODE)
    end, keys = _extent(tile, earlier, count, heads, splits, ROWS, SPLIT)
    begin = split * keys
    # The first split of a sequence without keys writes its zeros.
    if (tile * ROWS < count * heads) & (begin < tl.maximum(end, 1)):
        row = tile * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, COLUMNS)
        turned = tl.arange(0, ROTATED)
        query = row // heads
        head = row % heads
        position = earlier + query
        token = (start + query).to(tl.int64)
        exists = query < count
        place = q + (token * q_strides[0] + head * q_strides[1])[:, None]
        inside = exists[:, None] & (column < C)[None, :]
        latent_queries = tl.load(place + column[None, :], inside, other=0)
        turning = exists[:, None] & (turned < R)[None, :]
        rotated_queries = tl.load(place + C + turned[None, :], turning, other=0)
        queries = latent_queries, rotated_queries

        table = block_tables + tl.load(slots + sequence).to(tl.int64) * table_stride
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        state = acc, tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
        stop = tl.minimum(begin + keys, end)
        # Keys up to the tile's first position are visible to every row.
        seen = tl.minimum(earlier + tile * ROWS // heads + 1, stop)
        whole = begin + tl.maximum(seen - begin, 0) // KEYS * KEYS
        for at in range(begin, whole, KEYS):
            key = at + tl.arange(0, KEYS)
            state = _fold(
                queries, state, cache, table, key, None, None, scale,
                False, BLOCK_TOKENS, C, R, W, COLUMNS, ROTATED,
            )  # fmt: skip
        for at in range(whole, stop, KEYS):
            key = at + tl.arange(0, KEYS)
            visible = (key[None, :] <= position[:, None]) & (key < stop)[None, :]
            state = _fold(
                queries, state, cache, table, key, key < stop, visible, scale,
                True, BLOCK_TOKENS, C, R, W, COLUMNS, ROTATED,
            )  # fmt: skip
        acc, peak, total = state
        result = token * heads + head
        if end <= keys:
            if LSE:
                tl.store(lse + result, log_total(total, peak), exists)
            total = with_sink(total, peak, sinks, head, exists, SINKS)
            acc = acc / tl.where(total > 0, total, 1)[:, None]
            target = out + (result * C)[:, None] + column[None, :]
            tl.store(target, acc.to(out.dtype.element_ty), inside)
        else:
            part = result * splits + split
            tl.store(parts + (part * C)[:, None] + column[None, :], acc, inside)
            tl.store(peaks + part * 2, peak, exists)
            tl.store(peaks + part * 2 + 1, total, exists)


@triton.jit(do_not_specialize=["splits"])
def _sum_splits(
    parts, peaks, query_start, kv_len, sinks, out, lse, heads, splits,
    C: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr,
    SPLIT: tl.constexpr, DECODE: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """One program per query and head, always in the same order; most have one split."""
    row = tl.program_id(0)
    start, count, earlier = _chunk(query_start, kv_len, tl.program_id(1), DECODE)
    end, keys = _extent(row // ROWS, earlier, count, heads, splits, ROWS, SPLIT)
    used = tl.cdiv(end, keys)
    if (row < count * heads) & (used > 1):
        column = tl.arange(0, COLUMNS)
        inside = column < C
        result = (start + row // heads).to(tl.int64) * heads + row % heads
        peak = tl.full((), LOWEST, tl.float32)
        total = tl.full((), 0.0, tl.float32)
        acc = tl.zeros((COLUMNS,), tl.float32)
        for first in range(0, used, SLOTS):
            split = first + tl.arange(0, SLOTS)
            exists = split < used
            part = result * splits + split
            some_peak = tl.load(peaks + part * 2, exists, other=LOWEST)
            some_total = tl.load(peaks + part * 2 + 1, exists, other=0)
            tile = exists[:, None] & inside[None, :]
            some = tl.load(parts + (part * C)[:, None] + column[None, :], tile, other=0)
            new_peak = tl.maximum(peak, tl.max(some_peak, 0))
            weight, shrink = tl.exp2(some_peak - new_peak), tl.exp2(peak - new_peak)
            acc = acc * shrink + tl.sum(some * weight[:, None], 0)
            total = total * shrink + tl.sum(some_total * weight, 0)
            peak = new_peak
        if LSE:
            tl.store(lse + result, log_total(total, peak))
        total = with_sink(total, peak, sinks, row % heads, True, SINKS)
        tl.store(out + result * C + column, (acc / total).to(out.dtype.element_ty), inside)


class _Tile(NamedTuple):
    """Launch constants: rows and keys of a tile, warps, and stages of the software pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


def _tile(q: Tensor, rank: int, rows: int) -> _Tile:
    """The tile for at most `rows` rows of a sequence."""
    is_large = shared_bytes(q.device) >= LARGE
    if q.dtype == torch.float32:  # no tensor cores: larger tiles spill registers
        return _Tile(16, 16, 8, 1)
    if rank > WIDE:  # 32 rows take 138 KiB of shared memory, 16 rows 103, or 69 with 16 keys
        return _Tile(16 if rows <= 16 else 32, 32, 8, 2) if is_large else _Tile(16, 16, 8, 2)
    if rows <= 16:
        return _Tile(16, 32, 4, 3)
    # 64 rows take 144 KiB of shared memory, 32 rows 74; with 4 warps 32 rows spill registers.
    if rows <= 32 or not is_large:
        return _Tile(32, 32, 8, 2)
    return _Tile(64, 32, 8, 2)


def latent_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    query_start: Tensor | None,
    kv_len: Tensor,
    scale: float,
    *,
    rank: int,
    max_query: int,
    out: Tensor | None = None,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    _, heads, size = q.shape
    sequences, block_tokens = len(kv_len), kv_cache.shape[3]
    if out is None:
        out = torch.empty((*q.shape[:2], rank), dtype=q.dtype, device=q.device)
    decode = query_start is None
    rows = heads * (1 if decode else max_query)
    if not rows or not sequences:
        return out
    tile = _tile(q, rank, rows)
    capacity = block_tables.shape[1] * block_tokens
    chosen = plan(q, rank, sequences, (rows, tile.rows), capacity)
    starts = kv_len if query_start is None else query_start
    columns = max(16, power_of_two(rank))
    _attend_tile[(chosen.tiles * chosen.splits, sequences)](
        q,
        kv_cache,
        block_tables,
        slots,
        starts,
        kv_len,
        kv_len if sinks is None else sinks,
        out,
        out if lse is None else lse,
        chosen.parts,
        chosen.peaks,
        constants(scale, 0.0)[0],
        q.stride()[:2],
        block_tables.stride(0),
        heads,
        chosen.tiles,
        chosen.splits,
        BLOCK_TOKENS=block_tokens,
        C=rank,
        R=size - rank,
        W=kv_cache.shape[-1],
        COLUMNS=columns,
        ROTATED=max(16, power_of_two(size - rank)),
        ROWS=tile.rows,
        KEYS=tile.keys,
        SPLIT=SPLIT,
        DECODE=decode,
        SINKS=sinks is not None,
        LSE=lse is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if chosen.splits > 1:
        _sum_splits[(rows, sequences)](
            chosen.parts,
            chosen.peaks,
            starts,
            kv_len,
            kv_len if sinks is None else sinks,
            out,
            out if lse is None else lse,
            heads,
            chosen.splits,
            C=rank,
            COLUMNS=columns,
            ROWS=tile.rows,
            SLOTS=min(SUMMED, SUMMED * WIDE // columns, power_of_two(chosen.splits)),
            SPLIT=SPLIT,
            DECODE=decode,
            SINKS=sinks is not None,
            LSE=lse is not None,
            num_warps=4,
        )
    return out
