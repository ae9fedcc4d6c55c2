"""Reference of sample in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..shared import wide
from .noise import GROUP, GROUPS, exponential


def sample(
    logits: Tensor,
    slots: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
    min_p: Tensor | None = None,
    typical_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the public function."""
    inner = wide(logits)
    ids = inner.argmax(dim=-1)
    temperature = temperature[slots]
    random = temperature > 0
    if bool(random.any()):
        rows = random.nonzero().squeeze(1)
        drawn = inner if len(rows) == len(random) else inner[rows]
        drawn_slots = slots[rows]
        scaled = _scaled(drawn, temperature[rows])
        scaled = _kept_top(scaled, top_k[drawn_slots], top_p[drawn_slots])
        if min_p is not None and typical_p is not None:
            scaled = _kept_min_p_typical_p(scaled, min_p[drawn_slots], typical_p[drawn_slots])
        ids[rows] = _draw(scaled, (seed[drawn_slots], position[rows]))
    chosen = inner.gather(1, ids[:, None]).squeeze(1)
    return ids, (chosen - inner.logsumexp(dim=-1)).float()


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits over temperature, the largest of each row at 0."""
    largest = logits.amax(dim=-1, keepdim=True)
    return (logits - largest).div_(temperature.to(logits.dtype)[:, None])


def _kept_top(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """-inf for what top_k and then top_p drop."""
    if bool(((top_k > 0) | (top_p < 1)).any()):
        return scaled.masked_fill(scaled < _threshold(scaled, top_k, top_p), -torch.inf)
    return scaled


def _kept_min_p_typical_p(scaled: Tensor, min_p: Tensor, typical_p: Tensor) -> Tensor:
    """-inf for what min_p and then typical_p drop."""
    scaled = scaled.masked_fill(scaled < min_p.to(scaled.dtype).log()[:, None], -torch.inf)
    if not bool((typical_p < 1).any()):
        return scaled
    probabilities = scaled.softmax(dim=-1)
    mean = (probabilities * scaled).nan_to_num_(nan=0).sum(dim=-1, keepdim=True)
    distance = (scaled - mean).abs_()
    ranked, order = distance.sort(dim=-1)
    mass = probabilities.gather(1, order).cumsum_(dim=-1)
    short = mass < typical_p.to(scaled.dtype)[:, None]
    last = short.sum(dim=-1, keepdim=True).clamp_(max=scaled.shape[1] - 1)
    bound = ranked.gather(1, last).masked_fill_((typical_p >= 1)[:, None], torch.inf)
    return scaled.masked_fill(distance > bound, -torch.inf)


def _draw(scaled: Tensor, keys: tuple[Tensor, Tensor]) -> Tensor:
    """Ids [S] drawn by softmax(scaled); `keys` are (seed, position). May write to `scaled`."""
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
