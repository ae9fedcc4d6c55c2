"""Reference of top_logprobs in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..shared import wide


def top_logprobs(
    logits: Tensor, rows: Tensor, targets: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See the public function."""
    inner = wide(logits[rows])  # a copy: what was found is struck out below
    normaliser = inner.logsumexp(dim=-1)
    target = inner.gather(1, targets[:, None])
    tokens = torch.arange(inner.shape[1], device=inner.device)
    ordered = torch.where(inner.isnan(), -torch.inf, inner)
    bound = ordered.gather(1, targets[:, None])
    before = (ordered > bound) | ((ordered == bound) & (tokens < targets[:, None]))
    ranks = 1 + before.sum(dim=-1, dtype=torch.int32)
    ids = torch.zeros((len(rows), count), dtype=torch.int64, device=inner.device)
    found = torch.zeros((len(rows), count), dtype=inner.dtype, device=inner.device)
    for place in range(count):
        best = inner.argmax(dim=-1, keepdim=True)  # the first of equal ones
        ids[:, place : place + 1] = best
        found[:, place : place + 1] = inner.gather(1, best)
        inner.scatter_(1, best, -torch.inf)
    chosen = (target.squeeze(1) - normaliser).float()
    return chosen, ranks, ids.int(), (found - normaliser[:, None]).float()
