"""Triton kernels of index_blocks: one scores the blocks of a span, one lists those of a head."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two
from ..index_tokens.choice import SCRATCH, TILE, fill, taken, threshold

SPAN = 512  # tokens of a program that scores, as far as whole blocks make them up
MANY = 256  # rows from which spans are longer: few tables are full, and programs take time to end
KEYS = 64  # tokens of a tile of scores; of float32 fewer, or registers would be spilled


@triton.jit(do_not_specialize=["first", "span"])
def _score_span(
    q, cache, block_tables, slots, kv_len, scores, q_strides, table_stride, first, span, heads,
    most, capacity, block_stride,
    BLOCK: tl.constexpr, RECENT: tl.constexpr, BLOCK_TOKENS: tl.constexpr, D: tl.constexpr,
    W: tl.constexpr, COLUMNS: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Scores of one row for the blocks of one span, if the row sees more than it may choose."""
    piece = tl.program_id(0)
    row = first + piece
    seen = tl.load(kv_len + row)
    blocks = tl.cdiv(seen, BLOCK)
    begin = tl.program_id(1) * span
    if (blocks > most) & (begin < blocks):
        head = tl.arange(0, HEADS)
        column = tl.arange(0, COLUMNS)
        place = q + row.to(tl.int64) * q_strides[0] + head[:, None] * q_strides[1]
        tile = (head < heads)[:, None] & (column < D)[None, :]
        queries = tl.load(place + column[None, :], tile, other=0)
        table = block_tables + tl.load(slots + row).to(tl.int64) * table_stride
        out = scores + piece.to(tl.int64) * heads * capacity + head * capacity
        for number in range(begin, tl.minimum(begin + span, blocks)):
            best = tl.full((HEADS,), float("-inf"), tl.float32)
            end = tl.minimum((number + 1) * BLOCK, seen)
            for at in range(number * BLOCK, end, KEYS):
                key = at + tl.arange(0, KEYS)
                visible = key < end
                page = tl.load(table + key // BLOCK_TOKENS, visible, other=0).to(tl.int64)
                source = cache + page * block_stride + key % BLOCK_TOKENS * W + (W - D)
                inside = visible[None, :] & (column < D)[:, None]
                keys = tl.load(source[None, :] + column[:, None], inside, other=0)
                products = tl.dot(queries, keys, input_precision="ieee")
                products = tl.where(visible[None, :], products, float("-inf"))
                best = tl.maximum(best, tl.max(products, 1))
            best = tl.where(number >= blocks - RECENT, float("inf"), best)
            tl.store(out + number, best, head < heads)


@triton.jit(do_not_specialize=["first"])
def _list_blocks(
    scores, kv_len, chosen, first, heads, most, capacity, BLOCK: tl.constexpr, TILE: tl.constexpr
):
    """Lists the blocks of one head of one row."""
    piece = tl.program_id(0)
    row = first + piece // heads
    blocks = tl.cdiv(tl.load(kv_len + row), BLOCK)
    scores += piece.to(tl.int64) * capacity
    out = chosen + (row.to(tl.int64) * heads + piece % heads) * most
    floor = tl.full((), 0, tl.uint32)
    equals = most
    if blocks > most:
        floor, equals = threshold(scores, blocks, most, TILE)
    listed = 0
    passed = 0
    for at in range(0, blocks, TILE):
        number, one, passed = taken(scores, at, blocks, most, floor, equals, passed, TILE)
        tl.store(out + listed + tl.cumsum(one.to(tl.int32), 0) - 1, number, one)
        listed += tl.sum(one.to(tl.int32))
    fill(out, listed, most, TILE)


def index_blocks(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    kv_len: Tensor,
    chosen: Tensor,
    *,
    block: int,
    recent: int,
) -> None:
    """See the public function."""
    tokens, heads, _ = q.shape
    most = chosen.shape[2]
    capacity = divided_up(block_tables.shape[1] * kv_cache.shape[3], block)
    if not tokens or not heads:
        return
    at_once = min(max(SCRATCH // (heads * capacity), 1), tokens)
    scored = capacity > most
    shape = (at_once, heads, capacity) if scored else (0, heads, 0)
    scores = torch.empty(shape, dtype=torch.float32, device=q.device)
    for first in range(0, tokens, at_once):
        some = min(at_once, tokens - first)
        if scored:
            places = block_tables, slots, kv_len
            _score(q, kv_cache, places, scores, (first, some), most, (block, recent))
        grid = (some * heads,)
        sizes = first, heads, most, capacity
        _list_blocks[grid](scores, kv_len, chosen, *sizes, BLOCK=block, TILE=TILE, num_warps=8)


def _score(
    q: Tensor,
    kv_cache: Tensor,
    places: tuple[Tensor, Tensor, Tensor],
    scores: Tensor,
    rows: tuple[int, int],
    most: int,
    blocks: tuple[int, int],
) -> None:
    """Fills the scores of the queries from the row `rows[0]` on, `rows[1]` of them. `places`: block
    tables, slots, tokens of each sequence; `blocks`: tokens of a block, and how many are chosen in
    any case."""
    _, heads, size = q.shape
    at_once, _, capacity = scores.shape
    wide = q.dtype == torch.float32
    span = divided_up(SPAN if at_once < MANY else 8 * SPAN, blocks[0])
    _score_span[(rows[1], divided_up(capacity, span))](
        q,
        kv_cache,
        *places,
        scores,
        q.stride()[:2],
        places[0].stride(0),
        rows[0],
        span,
        heads,
        most,
        capacity,
        kv_cache.stride(0),
        BLOCK=blocks[0],
        RECENT=blocks[1],
        BLOCK_TOKENS=kv_cache.shape[3],
        D=size,
        W=kv_cache.shape[4],
        COLUMNS=max(16, power_of_two(size)),
        HEADS=max(16, power_of_two(heads)),
        KEYS=min(16 if wide else KEYS, max(16, power_of_two(blocks[0]))),
        num_warps=8 if wide else 4,
        num_stages=2,
    )
