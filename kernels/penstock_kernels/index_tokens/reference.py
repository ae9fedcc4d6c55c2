"""Reference of index_tokens in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..shared import SCORES, wide


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
    lengths: list[int] = kv_len.tolist()
    starts = range(len(lengths) + 1) if query_start is None else query_start.tolist()
    size, block_tokens = q.shape[2], kv_cache.shape[3]
    for sequence, length in enumerate(lengths):
        own = slice(starts[sequence], starts[sequence + 1])
        if not length:
            rows[own], counts[own] = -1, 0
        elif own.start < own.stop:
            seen = torch.arange(length, device=q.device)
            blocks = block_tables[slots[sequence], seen // block_tokens].long()
            keys = wide(kv_cache[blocks, 0, 0, seen % block_tokens, -size:])
            places = (blocks * block_tokens + seen % block_tokens).int()
            _choose(wide(q[own]), weights[own], keys, places, rows[own], counts[own])


def _choose(
    q: Tensor, weights: Tensor, keys: Tensor, places: Tensor, rows: Tensor, counts: Tensor
) -> None:
    """One sequence's last queries [n, H, D] among its tokens' keys [L, D], whose rows are `places`
    [L]."""
    length, most = len(keys), rows.shape[1]
    seen = torch.arange(length, device=q.device)
    position = torch.arange(length - len(q), length, device=q.device)
    counts.copy_((position + 1).clamp(max=most))
    rows.fill_(-1)
    some = max(1, SCORES // (q.shape[1] * length))  # queries at once
    for start in range(0, len(q), some):
        part = slice(start, start + some)
        scores = torch.einsum("nhd,ld->nhl", q[part], keys).relu_()
        scores = torch.einsum("nhl,nh->nl", scores, weights[part].to(scores.dtype))
        scores.masked_fill_(seen > position[part, None], -torch.inf)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :most]
        kept = torch.arange(best.shape[1], device=q.device) < counts[part, None]
        ordered = best.masked_fill(~kept, length).sort(dim=1).values
        found = places[ordered.clamp(max=length - 1)].masked_fill(ordered == length, -1)
        rows[part, : found.shape[1]] = found
