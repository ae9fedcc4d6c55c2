"""Reference of sample in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..shared import wide
from .noise import GROUP, GROUPS, exponential


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
    rows, vocabulary = scaled.shape
    tokens = torch.arange(vocabulary, device=scaled.device)
    if vocabulary > GROUP:
        count = -(-vocabulary // GROUP)
        groups = torch.arange(count, device=scaled.device)
        scaled = torch.nn.functional.pad(scaled, (0, count * GROUP - vocabulary), value=-torch.inf)
        parts = scaled.view(rows, count, GROUP)
        mass = parts.logsumexp(dim=-1)
        mass -= exponential(*keys, GROUPS + groups, mass.dtype).log_()
        group = mass.argmax(dim=-1, keepdim=True)
        scaled = parts.gather(1, group[:, :, None].expand(-1, -1, GROUP)).squeeze(1)
        tokens = group * GROUP + torch.arange(GROUP, device=scaled.device)
    scaled -= exponential(*keys, tokens, scaled.dtype).log_()
    chosen = scaled.argmax(dim=-1, keepdim=True)
    return tokens.expand(rows, -1).gather(1, chosen).squeeze(1).clamp_(max=vocabulary - 1)


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
