"""Reference of sample in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..shared import wide
from .noise import exponential


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """See the public function."""
    inner = wide(logits)
    ids = inner.argmax(dim=-1)
    random = temperature > 0
    if bool(random.all()):
        ids = _draw(inner, temperature, top_k, top_p, (seed, position))
    elif bool(random.any()):
        rows = random.nonzero().squeeze(1)
        keys = seed[rows], position[rows]
        ids[rows] = _draw(inner[rows], temperature[rows], top_k[rows], top_p[rows], keys)
    chosen = inner.gather(1, ids[:, None]).squeeze(1)
    return ids, (chosen - inner.logsumexp(dim=-1)).float()


def _draw(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, keys: tuple[Tensor, Tensor]
) -> Tensor:
    """Ids [S] of rows that are all random; `keys` are (seed, position)."""
    largest = logits.amax(dim=-1, keepdim=True)
    scaled = (logits - largest).div_(temperature.to(logits.dtype)[:, None])
    if bool(((top_k > 0) | (top_p < 1)).any()):
        scaled = scaled.masked_fill(scaled < _threshold(scaled, top_k, top_p), -torch.inf)
    scaled -= exponential(keys[0], keys[1], logits.shape[1], logits.dtype).log_()
    return scaled.argmax(dim=-1)


def _threshold(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The smallest kept value [S, 1] of each row of scaled logits, by sorting what may be kept."""
    vocabulary = scaled.shape[1]
    needed = torch.where(top_p < 1, vocabulary, 1)
    last = torch.where(top_k > 0, top_k, needed).clamp(max=vocabulary)
    ranked = scaled.topk(int(last.max())).values
    kth = ranked.gather(1, last[:, None].long() - 1)
    kth = kth.masked_fill((top_k <= 0)[:, None], -torch.inf)
    total = scaled.exp().masked_fill_(scaled < kth, 0).sum(dim=-1, keepdim=True)
    mass = ranked.exp()
    above = mass.cumsum(dim=-1) - mass
    inside = (above < top_p.to(scaled.dtype)[:, None] * total) & (ranked >= kth)
    final = inside.sum(dim=-1, keepdim=True).clamp(min=1) - 1
    return torch.where(top_p[:, None] < 1, ranked.gather(1, final), kth)
