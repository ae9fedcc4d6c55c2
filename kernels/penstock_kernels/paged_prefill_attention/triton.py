"""Triton kernel of paged_prefill_attention.

A program takes one tile of rows of one sequence and key head. Rows are (query, head of the group)
pairs, queries first, so that keys and values are read once for the whole group, whatever its size.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, is_hopper, power_of_two
from ..kv_quantization import bits_of
from ..online_softmax import LOWEST, bias_of, constants, first_seen, fold, with_sink
from ..op import ArchKernel

HOPPER = ArchKernel(f"{__package__}.hopper", is_hopper)


@triton.jit
def _attend_tile(
    q,
    cache,
    kv_params,
    block_tables,
    slots,
    query_start,
    kv_len,
    sinks,
    biases,
    out,
    scale,
    softcap,
    window,
    q_strides,
    table_stride,
    kv_heads,
    GROUP: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BITS: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOWED: tl.constexpr,
    ALIGNED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    BY_QUERY: tl.constexpr,
    ALIBI: tl.constexpr,
    EXTENT: tl.constexpr,
):
    sequence = tl.program_id(2)
    head = tl.program_id(1)
    start = tl.load(query_start + sequence)
    count = tl.load(query_start + sequence + 1) - start
    first_row = tl.program_id(0) * ROWS
    if first_row >= count * GROUP:
        return
    length = tl.load(kv_len + sequence)
    earlier = length - count
    row = first_row + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    query = row // GROUP
    position = earlier + query
    query_head = head * GROUP + row % GROUP
    token = (start + query).to(tl.int64)
    tile = (query < count)[:, None] & (column < D)[None, :]
    rows = token * q_strides[0] + query_head * q_strides[1]
    queries = tl.load(q + rows[:, None] + column[None, :], tile, other=0)

    table = block_tables + tl.load(slots + sequence).to(tl.int64) * table_stride
    plane = kv_heads, head
    end = tl.minimum(length, earlier + (first_row + ROWS - 1) // GROUP + 1)
    if WINDOWED:
        begin = first_seen(earlier + first_row // GROUP, window, ALIGNED)
        whole = begin
    else:
        begin = 0
        # Keys up to the tile's first position are visible to every row.
        whole = (earlier + first_row // GROUP + 1) // KEYS * KEYS

    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    state = acc, tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
    bias = bias_of(
        biases, token, query_head, position, query < count, kv_heads, GROUP, ALIBI, EXTENT
    )
    for at in range(begin, whole, KEYS):
        key = at + tl.arange(0, KEYS)
        state = fold(
            queries, state, (cache, kv_params), table, plane, key, None, None, scale,
            softcap, bias, CAPPED, ALIBI, EXTENT, False, BLOCK_TOKENS, BITS, D, COLUMNS,
        )  # fmt: skip
    for at in range(whole, end, KEYS):
        key = at + tl.arange(0, KEYS)
        visible = key[None, :] <= position[:, None]
        if WINDOWED:
            visible = visible & (key[None, :] >= first_seen(position, window, ALIGNED)[:, None])
        state = fold(
            queries, state, (cache, kv_params), table, plane, key, key < end, visible, scale,
            softcap, bias, CAPPED, ALIBI, EXTENT, True, BLOCK_TOKENS, BITS, D, COLUMNS,
        )  # fmt: skip
    acc, peak, total = state
    query_row = token * (kv_heads * GROUP) + query_head
    own = query_row if BY_QUERY else query_head
    total = with_sink(total, peak, sinks, own, query < count, SINKS)
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (query_row * D)[:, None] + column[None, :], result, tile)


class _Tiles(NamedTuple):
    """Launch constants: rows and keys of a tile, warps, and stages of the software pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


def _tiles(q: Tensor, kv_cache: Tensor, rows: int, biased: bool) -> _Tiles:
    """Tiles for queries `q` [T, Hq, D] and at most `rows` rows per sequence and key head.
    `biased`: whether each row has biases of its own."""
    size = q.shape[2]
    if q.dtype == torch.float32:
        return _Tiles(16, 16, 8, 1) if size > 128 else _Tiles(16, 32, 4, 1)
    if biased and size <= 256:  # each score has an address: larger tiles spill registers
        return _Tiles(min(64, max(16, power_of_two(rows))), 32, 8, 2)
    if size > 256:  # more rows spill registers; more keys do not fit smaller GPUs
        return _Tiles(min(32, max(16, power_of_two(rows))), 32, 8, 2)
    if kv_cache.dtype.itemsize == 1 and not is_hopper(q.device):
        # To convert a tile takes registers: larger ones spill on an A100.
        return _Tiles(min(32 if size > 128 else 64, max(16, power_of_two(rows))), 32, 8, 2)
    if size > 128:
        # With 4 warps registers spill, and with 64 keys where both operands are in registers.
        # Heads of 256 take 160 KiB on a Hopper GPU, 68 elsewhere (with 64 keys 104).
        keys = 64 if is_hopper(q.device) else 32
        return _Tiles(min(64, max(16, power_of_two(rows))), keys, 8, 2)
    # On an H200, 32 query and 8 key heads of 128, 4,096 tokens: 299 TFLOP/s; with 3 stages 287,
    # with 128 keys 272, with 64 rows and 4 warps 245.
    tile = min(128, max(16, power_of_two(rows)))
    return _Tiles(tile, 64, 8 if tile == 128 else 4, 2)


def paged_prefill_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    query_start: Tensor,
    kv_len: Tensor,
    scale: float,
    window: int = 0,
    *,
    max_query: int,
    out: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    kv_params: Tensor | None = None,
    aligned: bool = False,
    slopes: Tensor | None = None,
    rel_bias: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    _, heads, size = q.shape
    _, _, kv_heads, block_tokens, _ = kv_cache.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if not max_query or not len(kv_len):
        return out
    memory = kv_cache, block_tables, slots, query_start, kv_len
    # The kernel for Hopper knows no caps, no slopes, no biases, and no sinks of each query.
    rule = scale, window, aligned, sinks
    biases = rel_bias if slopes is None else slopes
    by_query = sinks is not None and sinks.ndim == 2
    takes = not softcap and biases is None and not by_query
    if takes and HOPPER.launch(q.device, (q, out), memory, kv_params, rule):
        return out
    rows = max_query * (heads // kv_heads)
    tiles = _tiles(q, kv_cache, rows, rel_bias is not None)
    grid = (divided_up(rows, tiles.rows), kv_heads, len(kv_len))
    _attend_tile[grid](
        q,
        kv_cache,
        kv_cache if kv_params is None else kv_params,
        block_tables,
        slots,
        query_start,
        kv_len,
        kv_len if sinks is None else sinks,
        kv_len if biases is None else biases,
        out,
        *constants(scale, softcap),
        window,
        q.stride()[:2],
        block_tables.stride(0),
        kv_heads,
        GROUP=heads // kv_heads,
        BLOCK_TOKENS=block_tokens,
        BITS=bits_of(kv_cache, size),
        D=size,
        COLUMNS=max(16, power_of_two(size)),
        ROWS=tiles.rows,
        KEYS=tiles.keys,
        WINDOWED=window > 0,
        ALIGNED=aligned and window > 0,
        CAPPED=softcap > 0,
        SINKS=sinks is not None,
        BY_QUERY=by_query,
        ALIBI=slopes is not None,
        EXTENT=0 if rel_bias is None else rel_bias.shape[2],
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out
