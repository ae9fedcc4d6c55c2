"""The choice of the tokens that a query attends to, by an indexer (DeepSeek sparse attention)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import (
    FLOATS,
    INDEX,
    expect,
    expect_contiguous,
    expect_latent,
    expect_queries,
    expect_rank,
    expect_rows,
    expect_tables,
)
from ..op import Op
from . import reference

_OP = Op("index_tokens", reference.index_tokens, mutates=("rows", "counts"))


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
    """Puts into `rows` the cache rows of the K tokens with the largest score for each query.

    score(t, s) = sum over heads h of weights[t, h] relu(q[t, h] . k[s]), of tokens s at or before
    the query t; k[s] are the last D columns of the token's row. Of equal scores, that of the
    earlier token counts as larger, so the choice is the same in every launch. A query with at most
    K tokens gets all of them. Which queries see which tokens is as in latent_attention.

    Args: q [T, H, D] of a float dtype; weights [T, H] float32 (float64 with float64 q), both with
        contiguous rows; kv_cache [blocks, 1, 1, block_tokens, W] contiguous, of q's dtype, W >= D;
        block_tables [N, B] int32, whose entries past a sequence's end are never read; slots [S]
        int32, the row of block_tables of each sequence; query_start [S + 1] int32, rising; None:
        one query of each sequence, the last (T = S); kv_len [S] int32, with the queries; 0 marks a
        padding row of a decode; rows [T, K] int32, contiguous: block * block_tokens + offset, in
        the order of the tokens, then -1; counts [T] int32: how many there are, 0 for a padding
        row. Both are left alone before query_start[0] and from query_start[S] on.
    Precision: scores in float32, so near-equal ones may change places.
    Memory: at most 64 MiB of scores, or one row of them, whatever T and B are.
    Bytes moved: D elements for each visible (query, token) pair, 40 bytes for its score.
    Work: 2 H D operations for each visible pair.
    Source: DeepSeek-AI, DeepSeek-V3.2-Exp, 2025, section 2.1.
    """
    expect_rank("q", q, "T, H, D")
    tokens, heads, size = q.shape
    expect("q", q, (tokens, heads, size), FLOATS)
    expect("weights", weights, (tokens, heads), (torch.float32, torch.float64))
    expect_rows("q", q)
    expect_rows("weights", weights)
    expect_latent(kv_cache, q.dtype, size)
    expect_tables((block_tables, slots), kv_len)
    expect_queries(q, query_start, kv_len)
    expect_rank("rows", rows, "T, K")
    expect("rows", rows, (tokens, rows.shape[1]), INDEX)
    expect("counts", counts, (tokens,), INDEX)
    expect_contiguous("rows", rows)
    expect_contiguous("counts", counts)
    tables = block_tables, slots, query_start, kv_len
    _OP.on(q)(q, weights, kv_cache, *tables, rows, counts)
