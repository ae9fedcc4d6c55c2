"""Reference of process_logits in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..sample.noise import splitmix
from ..shared import wide
from .params import ALLOWED_BITS, GENERATED, FloatParam, IntParam, LogitsProcessorParams


def process_logits(
    logits: Tensor, slots: Tensor, previous: Tensor, params: LogitsProcessorParams
) -> Tensor:
    """See the public function."""
    x = wide(logits).clone()
    floats, ints = params.floats[slots].to(x.dtype), params.ints[slots]
    _add_biases(x, slots, params)
    counts = params.counts[slots].int()
    repetition = floats[:, FloatParam.REPETITION, None]
    x = torch.where(counts > 0, torch.where(x < 0, x * repetition, x / repetition), x)
    generated = counts & GENERATED
    x -= floats[:, FloatParam.FREQUENCY, None] * generated
    x -= floats[:, FloatParam.PRESENCE, None] * (generated > 0)
    tokens = torch.arange(x.shape[1], device=x.device)
    bits = params.allowed[slots][:, tokens // ALLOWED_BITS] >> (tokens % ALLOWED_BITS).int()
    forbidden = (ints[:, IntParam.RESTRICTED, None] > 0) & (bits & 1 == 0)
    x.masked_fill_(forbidden, -torch.inf)
    delta = floats[:, FloatParam.DELTA, None]
    if bool((delta != 0).any()):
        x += delta * green(ints[:, IntParam.KEY], previous, tokens, ints[:, IntParam.GREEN])
    return x


def green(key: Tensor, previous: Tensor, tokens: Tensor, bound: Tensor) -> Tensor:
    """Whether tokens [n] are green [S, n] after `previous` [S], for keys and bounds [S] int64."""
    zero = torch.zeros((), dtype=torch.int64, device=key.device)
    state = splitmix(splitmix(key, zero), previous)
    word = (splitmix(state[:, None], tokens) >> 32).bitwise_and_((1 << 32) - 1)
    return word < bound[:, None]


def _add_biases(x: Tensor, slots: Tensor, params: LogitsProcessorParams) -> None:
    width = params.bias_ids.shape[1]
    count = params.ints[slots, IntParam.BIASES]
    used = torch.arange(width, device=x.device) < count[:, None]
    rows = torch.arange(len(x), device=x.device)[:, None].expand(-1, width)[used]
    ids, values = params.bias_ids[slots][used].long(), params.bias_values[slots][used]
    x.index_put_((rows, ids), values.to(x.dtype), accumulate=True)
