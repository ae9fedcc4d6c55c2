"""Attention of prompt chunks over a paged cache."""

from __future__ import annotations

from torch import Tensor

from ..checks import INDEX, expect, expect_attention, expect_bias, expect_out, expect_rule
from ..op import Op
from . import reference

_OP = Op("paged_prefill_attention", reference.paged_prefill_attention)


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
    """softmax(scale q K^T) V, causal, for S sequences whose queries lie one after another in q.

    Query i of sequence s, one of n = query_start[s + 1] - query_start[s], sits at position
    p = kv_len[s] - n + i and sees the keys j with p - window < j <= p (window 0: j <= p). With
    `aligned`, windows begin at multiples of `window` instead: floor(p / window) window <= j <= p.
    So a chunk of a prompt sees what earlier chunks wrote; its own keys are in the cache already.

    Args: q [T, Hq, D]; kv_cache [blocks, 2, Hkv, block_tokens, D] and kv_params as in
        rope_kv_write, Hq a multiple of Hkv; block_tables [N, B] int32, whose entries past a
        sequence's end are never read; slots [S] int32, the row of block_tables of each sequence;
        query_start [S + 1] int32, rising; kv_len [S] int32, with the queries; max_query: at least
        the largest n (it sizes the launch);
        softcap: scores, once scaled, become softcap tanh(score / softcap) before the mask (0: they
        stay); sinks [Hq] float32: a logit of each query head, of no scale or cap, that takes part
        in the softmax and has no value, so that weights add up to less than 1; or [T, Hq], of each
        query; slopes [Hq] float32:
        scores, once scaled and capped, get slope (j - p) for key j of a query at p (ALiBi);
        rel_bias [T, Hq, E]: they get the query's number at d = p - j for key j, if d < E;
        out: where to put the result.
    Returns: [T, Hq, D] of q's dtype, contiguous. Rows of q before query_start[0] and from
        query_start[S] on are left alone in `out`, undefined in a new tensor.
    Precision: scores and sums in float32; on CUDA, products of float16 or bfloat16 operands with
        the probabilities rounded to that dtype.
    Work: 4 Hq D operations for each visible (query, key) pair.
    Source: online softmax, Milakov and Gimelshein 2018; tiling, Dao, FlashAttention-2, 2023; block
        tables, Kwon et al., PagedAttention, 2023.
    """
    expect_attention(q, (kv_cache, kv_params), (block_tables, slots), kv_len)
    expect_out(q, out)
    expect("query_start", query_start, (len(kv_len) + 1,), INDEX)
    expect_rule(q, window, softcap, sinks)
    expect_bias(q, slopes, rel_bias)
    if max_query < 0:
        raise ValueError(f"max_query is {max_query}; expected 0 or more")
    return _OP.on(q)(
        q, kv_cache, block_tables, slots, query_start, kv_len, scale, window, max_query=max_query,
        out=out, softcap=softcap, sinks=sinks, kv_params=kv_params, aligned=aligned,
        slopes=slopes, rel_bias=rel_bias,
    )  # fmt: skip
