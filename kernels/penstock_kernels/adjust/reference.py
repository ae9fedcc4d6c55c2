"""Reference of adjust in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..sample.noise import splitmix
from ..shared import wide
from .rules import ALLOWED_BITS, GENERATED, Number, Rules, Word


def adjust(logits: Tensor, slots: Tensor, previous: Tensor, rules: Rules) -> Tensor:
    """See the public function."""
    x = wide(logits).clone()
    numbers, words = rules.numbers[slots].to(x.dtype), rules.words[slots]
    _add_biases(x, slots, rules)
    counts = rules.counts[slots].int()
    repetition = numbers[:, Number.REPETITION, None]
    x = torch.where(counts > 0, torch.where(x < 0, x * repetition, x / repetition), x)
    generated = counts & GENERATED
    x -= numbers[:, Number.FREQUENCY, None] * generated
    x -= numbers[:, Number.PRESENCE, None] * (generated > 0)
    tokens = torch.arange(x.shape[1], device=x.device)
    bits = rules.allowed[slots][:, tokens // ALLOWED_BITS] >> (tokens % ALLOWED_BITS).int()
    forbidden = (words[:, Word.RESTRICTED, None] > 0) & (bits & 1 == 0)
    x.masked_fill_(forbidden, -torch.inf)
    delta = numbers[:, Number.DELTA, None]
    if bool((delta != 0).any()):
        x += delta * green(words[:, Word.KEY], previous, tokens, words[:, Word.GREEN])
    return x


def green(key: Tensor, previous: Tensor, tokens: Tensor, bound: Tensor) -> Tensor:
    """Whether tokens [n] are green [S, n] after `previous` [S], for keys and bounds [S] int64."""
    zero = torch.zeros((), dtype=torch.int64, device=key.device)
    state = splitmix(splitmix(key, zero), previous)
    word = (splitmix(state[:, None], tokens) >> 32).bitwise_and_((1 << 32) - 1)
    return word < bound[:, None]


def _add_biases(x: Tensor, slots: Tensor, rules: Rules) -> None:
    width = rules.bias_ids.shape[1]
    count = rules.words[slots, Word.BIASES]
    used = torch.arange(width, device=x.device) < count[:, None]
    rows = torch.arange(len(x), device=x.device)[:, None].expand(-1, width)[used]
    ids, values = rules.bias_ids[slots][used].long(), rules.bias_values[slots][used]
    x.index_put_((rows, ids), values.to(x.dtype), accumulate=True)
