"""Attention of one query per sequence over a paged cache."""

from __future__ import annotations

from torch import Tensor

from ..checks import expect_attention
from ..op import Op
from . import reference

_OP = Op("paged_decode_attention", reference.paged_decode_attention)


def paged_decode_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    kv_len: Tensor,
    scale: float,
    window: int = 0,
) -> Tensor:
    """softmax(scale q K^T) V for the last token of each of S sequences.

    The query sits at position kv_len - 1 and sees the last `window` keys (window 0: all).

    Args: q [S, Hq, D]; kv_cache [blocks, 2, Hkv, block_tokens, D], Hq a multiple of Hkv;
        block_tables [N, B] int32, of which entries past a sequence's end are never read; slots [S]
        int32, the row of block_tables of each sequence;
        kv_len [S] int32, with the query; 0 marks a padding row.
    Returns: [S, Hq, D] of q's dtype, contiguous; zeros for padding rows.
    Precision: as paged_prefill_attention.
    Reproducible: a row depends on its own query, keys and kv_len, to the last bit on CUDA: how its
        keys are split and the order of summation follow from kv_len alone.
    Bytes moved: 2 Hkv D elements for each visible key, once for the whole group of query heads.
    Source: split keys and values, Dao et al., Flash-Decoding, 2023; splits of a fixed size, He et
        al., Defeating Nondeterminism in LLM Inference, 2025.
    """
    expect_attention(q, kv_cache, (block_tables, slots), kv_len)
    if len(q) != len(kv_len):
        raise ValueError(f"q has {len(q)} rows for {len(kv_len)} sequences; expected one each")
    if window < 0:
        raise ValueError(f"window is {window}; expected 0 (unlimited) or more")
    return _OP.on(q)(q, kv_cache, block_tables, slots, kv_len, scale, window)
