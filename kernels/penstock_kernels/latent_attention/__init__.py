"""Multi-head latent attention over a paged cache: decode and chunks of prompts, absorbed form."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import (
    FLOATS,
    expect,
    expect_contiguous,
    expect_latent,
    expect_out,
    expect_queries,
    expect_rank,
    expect_rows,
    expect_rule,
    expect_tables,
)
from ..op import Op
from . import reference

_OP = Op("latent_attention", reference.latent_attention, mutates=("lse",))


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
    """softmax(scale q K^T) V, causal, where all heads share the rows of the cache.

    A row begins with a token's key of C + R elements, R from 0 on; C = `rank` of them are the value
    too. So queries are those of each head, multiplied by its key projection of the latent
    ("absorbed"), beside their R rotated dimensions; the caller multiplies what this returns by the
    value projection. Which queries see which rows is as in paged_prefill_attention.

    Args: q [T, Hq, C + R] of a float dtype, rows contiguous; kv_cache [blocks, 1, 1, block_tokens,
        W] contiguous, of q's dtype, W >= C + R; block_tables [N, B] int32, whose entries past a
        sequence's end are never read; slots [S] int32, the row of block_tables of each sequence;
        query_start [S + 1] int32, rising; None: one query of each sequence, the last (T = S);
        kv_len [S] int32, with the queries; 0 marks a padding row of a decode, which sees nothing;
        max_query: at least the largest number of queries of a sequence (it sizes the launch); out
        [T, Hq, C]: where to put the result; sinks [Hq] float32: a logit of each query head, not
        scaled, that takes part in the softmax and has no value; lse [T, Hq] float32 (float64 with
        float64 q): where to put the logarithm of each row's sum of exp(scores), without the sink;
        minus infinity for padding rows. By it, attention over several caches can be added up.
    Returns: [T, Hq, C] of q's dtype, contiguous; zeros for padding rows. Rows before query_start[0]
        and from query_start[S] on are left alone in `out` and `lse`, undefined in a new tensor.
    Precision: as paged_prefill_attention.
    Reproducible: a row depends on its own query, keys and kv_len, and by rounding on the shapes of
        the launch, which decide how keys are split. Parts are summed in a fixed order.
    Bytes moved: C + R elements for each row of the cache, once for every 16 to 64 query rows.
    Work: 2 Hq (2 C + R) operations for each visible (query, key) pair.
    Source: DeepSeek-AI, DeepSeek-V2, 2024; split keys, Dao et al., Flash-Decoding, 2023.
    """
    expect_rank("q", q, "T, Hq, C + R")
    expect("q", q, tuple(q.shape), FLOATS)
    expect_rows("q", q)
    expect_latent(kv_cache, q.dtype, q.shape[2])
    expect_tables((block_tables, slots), kv_len)
    expect_queries(q, query_start, kv_len)
    expect_out(q[..., :rank], out)
    expect_rule(q, 0, 0.0, sinks)
    _expect_lse(q, lse)
    _expect_numbers(q.shape[2], rank, max_query)
    tables = block_tables, slots, query_start, kv_len
    return _OP.on(q)(
        *(q, kv_cache, *tables, scale),
        rank=rank,
        max_query=max_query,
        out=out,
        sinks=sinks,
        lse=lse,
    )


def _expect_numbers(size: int, rank: int, max_query: int) -> None:
    """Raises ValueError unless these fit keys of `size` elements."""
    if not 0 < rank <= size:
        raise ValueError(f"rank is {rank}; expected 1 to {size}")
    if max_query < 0:
        raise ValueError(f"max_query is {max_query}; expected 0 or more")


def _expect_lse(q: Tensor, lse: Tensor | None) -> None:
    """Raises ValueError unless `lse` can receive a number of each row and head."""
    if lse is not None:
        expect("lse", lse, tuple(q.shape[:2]), (torch.promote_types(q.dtype, torch.float32),))
        expect_contiguous("lse", lse)
