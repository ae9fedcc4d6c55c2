"""Triton kernels of paged_decode_attention: attention over splits of the keys, then their sum.

How a sequence's keys are split follows from its own kv_len: splits of SPLIT keys, or of the
smallest multiple of SPLIT that makes at most MAX_SPLITS of them. No sum depends on the batch.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..online_softmax import LOG2_E, LOWEST, fold

# On an H200, 256 sequences of 1,100 tokens: 3.89 TB/s; 3.97 with splits of 512, which leave a lone
# sequence half the programs; 3.43 with splits of 128. 64 splits at most: 3.75.
SPLIT = 256
MAX_SPLITS = 32


@triton.jit
def _split_keys(length, SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr):
    """Keys in each split of a sequence of `length`."""
    return tl.maximum(tl.cdiv(length, SPLIT * MAX_SPLITS), 1) * SPLIT


@triton.jit
def _attend_split(
    q,
    cache,
    block_tables,
    slots,
    kv_len,
    partial,
    peaks,
    totals,
    scale,
    window,
    q_strides,
    table_stride,
    kv_heads,
    GROUP: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    split = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    length = tl.load(kv_len + sequence)
    keys = _split_keys(length, SPLIT, MAX_SPLITS)
    end = tl.minimum((split + 1) * keys, length)
    begin = tl.maximum(split * keys, length - window)
    if begin >= end:
        return
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    tile = (row < GROUP)[:, None] & (column < D)[None, :]
    query_head = head * GROUP + row
    rows = sequence.to(tl.int64) * q_strides[0] + query_head * q_strides[1]
    queries = tl.load(q + rows[:, None] + column[None, :], tile, other=0)
    table = block_tables + tl.load(slots + sequence).to(tl.int64) * table_stride
    plane = kv_heads, head

    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    state = acc, tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
    for at in range(begin, end, KEYS):
        key = at + tl.arange(0, KEYS)
        exists = key < end
        state = fold(
            queries, state, cache, table, plane, key, exists, exists[None, :], scale,
            True, BLOCK_TOKENS, D, COLUMNS,
        )  # fmt: skip
    acc, peak, total = state
    part = (sequence.to(tl.int64) * kv_heads * GROUP + query_head) * tl.num_programs(0) + split
    tl.store(partial + part[:, None] * D + column[None, :], acc, tile)
    tl.store(peaks + part, peak, row < GROUP)
    tl.store(totals + part, total, row < GROUP)


@triton.jit
def _sum_splits(
    partial,
    peaks,
    totals,
    kv_len,
    out,
    window,
    splits,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    head = tl.program_id(0)
    sequence = tl.program_id(1)
    length = tl.load(kv_len + sequence)
    keys = _split_keys(length, SPLIT, MAX_SPLITS)
    split = tl.arange(0, MAX_SPLITS)
    column = tl.arange(0, COLUMNS)
    used = (split * keys < length) & ((split + 1) * keys > length - window)
    row = sequence.to(tl.int64) * tl.num_programs(0) + head
    part = row * splits + split
    peak = tl.load(peaks + part, used, other=LOWEST)
    weight = tl.where(used, tl.exp2(peak - tl.max(peak, 0)), 0)
    total = tl.sum(weight * tl.load(totals + part, used, other=0), 0)
    tile = used[:, None] & (column < D)[None, :]
    acc = tl.load(partial + part[:, None] * D + column[None, :], tile, other=0)
    result = tl.sum(acc * weight[:, None], 0) / tl.where(length > 0, total, 1)
    tl.store(out + row * D + column, result.to(out.dtype.element_ty), column < D)


def _tile(dtype: torch.dtype, size: int) -> tuple[int, int]:
    """Keys of a tile, and stages of the software pipeline."""
    if dtype == torch.float32:
        return 32, 1  # no tensor cores: larger tiles spill registers
    if size > 128:
        return 64, 2
    # On an H200, 32 query and 8 key heads of 128, 256 sequences of 1,100 tokens: 3.89 TB/s; with 64
    # keys 3.71, with 32 keys and 4 stages 3.29. One sequence of 32,000: 2.63; with 2 stages 2.54.
    return 128, 3


def paged_decode_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    kv_len: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    """See the public function."""
    sequences, heads, size = q.shape
    _, _, kv_heads, block_tokens, _ = kv_cache.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    capacity = block_tables.shape[1] * block_tokens
    splits = max(min(triton.cdiv(capacity, SPLIT), MAX_SPLITS), 1)
    partial = torch.empty((sequences, heads, splits, size), dtype=torch.float32, device=q.device)
    peaks = torch.empty((2, sequences, heads, splits), dtype=torch.float32, device=q.device)
    shared = {
        "D": size,
        "COLUMNS": max(16, triton.next_power_of_2(size)),
        "SPLIT": SPLIT,
        "MAX_SPLITS": MAX_SPLITS,
    }
    visible = window or capacity
    keys, stages = _tile(q.dtype, size)
    if sequences:
        _attend_split[(splits, kv_heads, sequences)](
            q,
            kv_cache,
            block_tables,
            slots,
            kv_len,
            partial,
            peaks[0],
            peaks[1],
            scale * LOG2_E,
            visible,
            q.stride()[:2],
            block_tables.stride(0),
            kv_heads,
            GROUP=heads // kv_heads,
            BLOCK_TOKENS=block_tokens,
            ROWS=max(16, triton.next_power_of_2(heads // kv_heads)),
            KEYS=keys,
            num_warps=4,
            num_stages=stages,
            **shared,
        )
        _sum_splits[(heads, sequences)](
            partial, peaks[0], peaks[1], kv_len, out, visible, splits, num_warps=1, **shared
        )
    return out
