"""Reference of route_experts in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..shared import wide
from .routing import GroupScore, Routed, Routing, Score

SCORES: dict[Score, Callable[[Tensor], Tensor]] = {
    Score.SOFTMAX: partial(torch.softmax, dim=-1),
    Score.SIGMOID: torch.sigmoid,
    Score.SQRT_SOFTPLUS: lambda logits: softplus(logits, threshold=40).sqrt(),
}
SMALLEST_SUM = 1e-20  # added to sums that divide, as DeepSeek's router does


def route_experts(logits: Tensor, bias: Tensor | None, routing: Routing) -> Routed:
    """See the public function."""
    logits = wide(logits)
    scores = logits if routing.score_after_choice else SCORES[routing.score](logits)
    keys = scores if bias is None else scores + bias.to(scores.dtype)
    if routing.groups > routing.kept_groups:
        keys = _without_lost_groups(keys, routing)
    ids = _best(keys, routing.top_k)
    weights = scores.gather(1, ids)
    if routing.score_after_choice:
        weights = SCORES[routing.score](weights)
    if routing.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + SMALLEST_SUM)
    return Routed(ids.int(), weights * routing.scale)


def _best(keys: Tensor, count: int) -> Tensor:
    """Places [T, count] of the largest keys of each row, the first of equal ones first."""
    return keys.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _without_lost_groups(keys: Tensor, routing: Routing) -> Tensor:
    """The keys, minus infinity in groups that are not kept."""
    grouped = keys.unflatten(1, (routing.groups, -1))
    if routing.group_score is GroupScore.MAX:
        group_keys = grouped.amax(-1)
    else:
        group_keys = grouped.topk(2, dim=-1).values.sum(-1)
    kept = _best(group_keys, routing.kept_groups)
    lost = torch.ones_like(group_keys, dtype=torch.bool).scatter_(1, kept, False)
    return torch.where(lost[:, :, None], -torch.inf, grouped).flatten(1)
