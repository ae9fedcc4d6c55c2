"""Attention of one query per sequence over a paged cache, with rotation and the write before it."""

from __future__ import annotations

from torch import Tensor

from ..checks import (
    expect_attention,
    expect_bias,
    expect_out,
    expect_queries,
    expect_rotation,
    expect_rule,
)
from ..op import Op
from . import reference

_OP = Op(
    "paged_decode_attention", reference.paged_decode_attention, mutates=("kv_cache", "kv_params")
)


def paged_decode_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    kv_len: Tensor,
    scale: float,
    window: int = 0,
    out: Tensor | None = None,
    *,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    kv_params: Tensor | None = None,
    aligned: bool = False,
    slopes: Tensor | None = None,
    rel_bias: Tensor | None = None,
) -> Tensor:
    """rope_kv_write, then softmax(scale q K^T) V, for the last token of each of S sequences.

    The query sits at position kv_len - 1, as do k and v, and sees the last `window` keys (window
    0: all). With `aligned`, windows begin at multiples of `window` instead: it sees the keys from
    floor((kv_len - 1) / window) window on. q may be rotated in place: do not read it afterwards.
    Where k and v are None, those of the last token are in the cache too, and nothing is written.

    Args: q [S, Hq, D], k and v [S, Hkv, D], cos_sin, positions [S], slot_mapping [S], kv_cache
        and kv_params as in rope_kv_write, Hq a multiple of Hkv; block_tables [N, B] int32, whose
        entries past a sequence's end are never read; slots [S] int32, the row of block_tables of
        each sequence;
        kv_len [S] int32, with the query; 0 marks a padding row: nothing of it is rotated or written
        even if its slot_mapping names a place, which may be another's;
        softcap: scores, once scaled, become softcap tanh(score / softcap) before the mask (0: they
        stay); sinks [Hq] float32: a logit of each query head, of no scale or cap, that takes part
        in the softmax and has no value, so that weights add up to less than 1; or [S, Hq], of each
        query; slopes [Hq] float32:
        scores, once scaled and capped, get slope (j - kv_len + 1) for key j (ALiBi); rel_bias
        [S, Hq, E]: they get the number at d = kv_len - 1 - j for key j, if d < E;
        out: where to put the result.
    Returns: [S, Hq, D] of q's dtype, contiguous; zeros for padding rows.
    Precision: as paged_prefill_attention; queries are rounded to their dtype once rotated.
    Reproducible: a row depends on its own query, keys and kv_len, and on its neighbours by rounding
        only: on Hopper GPUs where its sum is split follows from all lengths; elsewhere, from its
        own, and not one bit changes. On CUDA, launches that may overlap in time share one stream.
    Bytes moved: 2 Hkv D elements for each visible key, once for the whole group of query heads.
    Source: split keys and values, Dao et al., Flash-Decoding, 2023; splits of a fixed size, He et
        al., Defeating Nondeterminism in LLM Inference, 2025; see also shares.py.
    """
    expect_rotation((q, k, v), cos_sin, (positions, slot_mapping), (kv_cache, kv_params))
    expect_attention(q, (kv_cache, kv_params), (block_tables, slots), kv_len)
    expect_out(q, out)
    expect_queries(q, None, kv_len)
    expect_rule(q, window, softcap, sinks)
    expect_bias(q, slopes, rel_bias)
    where = cos_sin, positions, slot_mapping, kv_cache, block_tables, slots, kv_len
    rest = kv_params, aligned, slopes, rel_bias
    return _OP.on(q)(q, k, v, *where, scale, window, out, softcap, sinks, *rest)
