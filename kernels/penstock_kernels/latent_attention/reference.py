"""Reference of latent_attention in torch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..shared import SCORES, Rule, attention, wide


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
    """See the public function; `max_query` only sizes launches on a device."""
    if out is None:
        out = torch.empty((*q.shape[:2], rank), dtype=q.dtype, device=q.device)
    lengths: list[int] = kv_len.tolist()
    starts = range(len(lengths) + 1) if query_start is None else query_start.tolist()
    block_tokens = kv_cache.shape[3]
    for sequence, length in enumerate(lengths):
        rows = slice(starts[sequence], starts[sequence + 1])
        if not length:
            out[rows] = 0
            if lse is not None:
                lse[rows] = -torch.inf
        elif rows.start < rows.stop:
            seen = torch.arange(length, device=q.device)
            blocks = block_tables[slots[sequence], seen // block_tokens].long()
            keys = wide(kv_cache[blocks, 0, 0, seen % block_tokens, : q.shape[2]])
            out[rows] = _attend(wide(q[rows]), keys, rank, Rule(scale, sinks=sinks))
            if lse is not None:
                lse[rows] = _sums(wide(q[rows]), keys, scale)
    return out


def _attend(q: Tensor, keys: Tensor, rank: int, rule: Rule) -> Tensor:
    """One sequence's last queries [n, Hq, C + R] over its rows [L, C + R]: [n, Hq, C]."""
    count, heads, size = q.shape
    length = len(keys)
    out = q.new_empty((count, heads, rank))
    some = max(1, SCORES // (heads * length))  # queries at once
    for start in range(0, count, some):
        queries = q[start : start + some]
        position = torch.arange(length - count + start, length - count + start + len(queries))
        mask = None
        if count > 1:  # a row of the mask for each head of each query
            mask = position.to(q.device)[:, None] >= torch.arange(length, device=q.device)
            mask = mask.repeat_interleave(heads, dim=0)
        sinks = None if rule.sinks is None else rule.sinks.repeat(len(queries))
        found = attention(
            queries.reshape(1, -1, size),
            keys[None],
            keys[None, :, :rank],
            mask,
            replace(rule, sinks=sinks),
        )
        out[start : start + some] = found.view(-1, heads, rank)
    return out


def _sums(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Logarithms [n, Hq] of the sums of exponentials of `_attend`, without sinks."""
    count, length = len(q), len(keys)
    position = torch.arange(length - count, length, device=q.device)
    seen = position[:, None, None] >= torch.arange(length, device=q.device)
    scores = torch.einsum("nhd,ld->nhl", q, keys) * scale
    return scores.masked_fill_(~seen, -torch.inf).logsumexp(-1)
