"""Triton kernels of index_tokens: one scores the tokens of a span, one chooses those of a row."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from .choice import SCRATCH, TILE, fill, taken, threshold

SPAN = 512  # tokens of a program that scores
MANY = 256  # rows from which spans are longer: few tables are full, and programs take time to end
KEYS = 64  # tokens of a tile of scores; of float32 fewer, or registers would be spilled
STARTS = tl.constexpr(64)  # sequences that a search for a row's sequence reads together


@triton.jit
def _place(row, query_start, kv_len, sequences, DECODE: tl.constexpr):
    """(whether row `row` of q is a query, its sequence, tokens that it sees)."""
    if DECODE:
        return True, row, tl.load(kv_len + row)
    else:  # noqa: RET505
        sequence = -1
        for at in range(0, sequences + 1, STARTS):
            each = at + tl.arange(0, STARTS)
            begin = tl.load(query_start + each, each <= sequences, other=0x7FFFFFFF)
            sequence += tl.sum(tl.where(begin <= row, 1, 0))
        inside = (sequence >= 0) & (sequence < sequences)
        sequence = tl.where(inside, sequence, 0)
        after = tl.load(query_start + sequence + 1) - row
        return inside, sequence, tl.load(kv_len + sequence) - after + 1


@triton.jit(do_not_specialize=["first", "sequences", "span"])
def _score_span(
    q, weights, cache, block_tables, slots, query_start, kv_len, scores, q_strides, weight_stride,
    table_stride, first, sequences, span, heads, most, capacity,
    BLOCK_TOKENS: tl.constexpr, D: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr,
    HEADS: tl.constexpr, KEYS: tl.constexpr, DECODE: tl.constexpr,
):  # fmt: skip
    """Scores of one row for the tokens of one span, if the row sees more than it may choose."""
    piece = tl.program_id(0)
    row = first + piece
    exists, sequence, seen = _place(row, query_start, kv_len, sequences, DECODE)
    begin = tl.program_id(1) * span
    if exists & (seen > most) & (begin < seen):
        head = tl.arange(0, HEADS)
        column = tl.arange(0, COLUMNS)
        place = q + row.to(tl.int64) * q_strides[0] + head[:, None] * q_strides[1]
        tile = (head < heads)[:, None] & (column < D)[None, :]
        queries = tl.load(place + column[None, :], tile, other=0)
        factor = tl.load(weights + row.to(tl.int64) * weight_stride + head, head < heads, other=0)
        table = block_tables + tl.load(slots + sequence).to(tl.int64) * table_stride
        out = scores + piece.to(tl.int64) * capacity
        for at in range(begin, tl.minimum(begin + span, seen), KEYS):
            key = at + tl.arange(0, KEYS)
            visible = key < seen
            block = tl.load(table + key // BLOCK_TOKENS, visible, other=0).to(tl.int64)
            source = cache + block * (BLOCK_TOKENS * W) + key % BLOCK_TOKENS * W + (W - D)
            inside = visible[None, :] & (column < D)[:, None]
            keys = tl.load(source[None, :] + column[:, None], inside, other=0)
            products = tl.dot(queries, keys, input_precision="ieee")
            score = tl.sum(tl.maximum(products, 0.0) * factor[:, None], 0)
            tl.store(out + key, score, visible)


@triton.jit(do_not_specialize=["first", "sequences"])
def _choose_row(
    scores, block_tables, slots, query_start, kv_len, rows, counts, table_stride, first, sequences,
    most, capacity,
    BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, DECODE: tl.constexpr,
):  # fmt: skip
    """Lists the tokens of one row."""
    piece = tl.program_id(0)
    row = first + piece
    exists, sequence, seen = _place(row, query_start, kv_len, sequences, DECODE)
    if exists:
        scores += piece.to(tl.int64) * capacity
        table = block_tables + tl.load(slots + sequence).to(tl.int64) * table_stride
        out = rows + row.to(tl.int64) * most
        count = tl.minimum(seen, most)
        tl.store(counts + row, count)
        floor = tl.full((), 0, tl.uint32)
        equals = most
        if seen > most:
            floor, equals = threshold(scores, seen, most, TILE)
        listed = 0
        passed = 0
        for at in range(0, seen, TILE):
            token, chosen, passed = taken(scores, at, seen, most, floor, equals, passed, TILE)
            block = tl.load(table + token // BLOCK_TOKENS, chosen, other=0)
            place = listed + tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(out + place, block * BLOCK_TOKENS + token % BLOCK_TOKENS, chosen)
            listed += tl.sum(chosen.to(tl.int32))
        fill(out, count, most, TILE)


Places = tuple[Tensor, Tensor, Tensor, Tensor]
"""Block tables, slots, first queries of sequences (any tensor if each has one), tokens of each."""


def index_tokens(
    q: Tensor,
    weights: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    query_start: Tensor | None,
    kv_len: Tensor,
    rows: Tensor,
    counts: Tensor,
) -> None:
    """See the public function."""
    tokens = len(q)
    most, block_tokens = rows.shape[1], kv_cache.shape[3]
    capacity = block_tables.shape[1] * block_tokens
    if not tokens or not len(kv_len):
        return
    at_once = min(max(SCRATCH // capacity, 1), tokens)
    scored = capacity > most
    shape = (at_once, capacity) if scored else (0, 0)
    scores = torch.empty(shape, dtype=torch.float32, device=q.device)
    places = block_tables, slots, kv_len if query_start is None else query_start, kv_len
    common = {"BLOCK_TOKENS": block_tokens, "DECODE": query_start is None}
    for first in range(0, tokens, at_once):
        some = min(at_once, tokens - first)
        if scored:
            _score((q, weights), kv_cache, places, scores, (first, some), most, common)
        _choose_row[(some,)](
            scores,
            *places,
            rows,
            counts,
            block_tables.stride(0),
            first,
            len(kv_len),
            most,
            capacity,
            TILE=TILE,
            num_warps=8,
            **common,
        )


def _score(
    queries: tuple[Tensor, Tensor],
    kv_cache: Tensor,
    places: Places,
    scores: Tensor,
    rows: tuple[int, int],
    most: int,
    common: dict[str, Any],
) -> None:
    """Fills the scores of the queries from the row `rows[0]` on, `rows[1]` of them."""
    q, weights = queries
    _, heads, size = q.shape
    at_once, capacity = scores.shape
    wide = q.dtype == torch.float32
    span = SPAN if at_once < MANY else 8 * SPAN
    _score_span[(rows[1], divided_up(capacity, span))](
        q,
        weights,
        kv_cache,
        *places,
        scores,
        q.stride()[:2],
        weights.stride(0),
        places[0].stride(0),
        rows[0],
        len(places[3]),
        span,
        heads,
        most,
        capacity,
        D=size,
        W=kv_cache.shape[-1],
        COLUMNS=max(16, power_of_two(size)),
        HEADS=max(16, power_of_two(heads)),
        KEYS=16 if wide else KEYS,
        num_warps=8 if wide else 4,
        num_stages=2,
        **common,
    )
