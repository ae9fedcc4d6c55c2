"""The choice of the blocks of tokens that each head attends to, by an indexer (MiniMax-M3)."""

from __future__ import annotations

from torch import Tensor

from ..checks import (
    FLOATS,
    INDEX,
    expect,
    expect_contiguous,
    expect_queries,
    expect_rank,
    expect_rows,
    expect_tables,
)
from ..op import Op
from . import reference

_OP = Op("index_blocks", reference.index_blocks, mutates=("chosen",))


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
    """Puts into `chosen` the K blocks with the largest score for each query and head.

    A block is `block` tokens of a sequence, from a multiple of `block` on. score(t, h, b) = the
    largest q[t, h] . k[s] of the block's tokens s at or before the query t; k[s] are the last D
    columns of the token's row in the first head. The last `recent` blocks are always among the
    chosen. Of equal scores, that of the earlier block counts as larger, so the choice is the same
    in every launch. A query with at most K blocks gets all of them.

    Args: q [T, H, D] of a float dtype, rows contiguous: one query of each of T sequences, the last;
        kv_cache [blocks, 1, G, block_tokens, W] contiguous, of q's dtype, W >= D; block_tables
        [N, B] int32, whose entries past a sequence's end are never read; slots [T] int32, the row
        of block_tables of each sequence; kv_len [T] int32, with the query; 0 marks a padding row;
        chosen [T, H, K] int32, contiguous, K >= `recent`: numbers of blocks in the sequence,
        rising, then -1.
    Precision: scores in float32, so near-equal ones may change places.
    Memory: at most 64 MiB of scores, or one row of them, whatever T and B are.
    Bytes moved: D elements for each visible (query, token) pair.
    Work: 2 H D operations for each visible pair.
    Source: MiniMax Sparse Attention, arXiv:2606.13392.
    """
    expect_rank("q", q, "T, H, D")
    tokens, heads, size = q.shape
    expect("q", q, (tokens, heads, size), FLOATS)
    expect_rows("q", q)
    expect_rank("kv_cache", kv_cache, "blocks, 1, G, block_tokens, W")
    expect("kv_cache", kv_cache, (len(kv_cache), 1, *kv_cache.shape[2:]), (q.dtype,))
    expect_contiguous("kv_cache", kv_cache)
    if kv_cache.shape[4] < size:
        raise ValueError(f"kv_cache has rows of {kv_cache.shape[4]}; expected at least {size}")
    expect_tables((block_tables, slots), kv_len)
    expect_queries(q, None, kv_len)
    expect_rank("chosen", chosen, "T, H, K")
    expect("chosen", chosen, (tokens, heads, chosen.shape[2]), INDEX)
    expect_contiguous("chosen", chosen)
    if block < 1 or not 0 <= recent <= chosen.shape[2]:
        raise ValueError(
            f"block is {block} and recent is {recent}; expected at least 1, and 0 to "
            f"{chosen.shape[2]}"
        )
    _OP.on(q)(q, kv_cache, block_tables, slots, kv_len, chosen, block=block, recent=recent)
