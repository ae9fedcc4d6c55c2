"""Reference of rg_lru in torch: token by token of decodes, in chunks of prompts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu

from ..recurrence import Runs, accumulated, in_chunks
from ..shared import wide

CHUNK = 64  # tokens


def rg_lru(
    x: Tensor,
    gates: Tensor,
    beside: Tensor,
    channels: tuple[Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    if out is None:
        out = x.new_empty(x.shape)
    values = wide(x)
    rate, biases = (each.to(values.dtype) for each in channels)
    opened, kept = (wide(gates) + biases).sigmoid().unbind(2)  # [T, H, B]
    decay_log = -rate * kept.flatten(1)
    added = values * opened.flatten(1)
    scaled = added * (-torch.expm1(2 * decay_log)).sqrt()
    tokens = decay_log.exp(), scaled, added, gelu(wide(beside), approximate="tanh")
    if runs.query_start is None:
        return _one_each(tokens, states, runs, out)
    decay, scaled, added, gate = tokens
    for rows, _, begun in runs.each():
        if not begun:
            scaled[rows.start] = added[rows.start]
    one_head = [each[:, None] for each in (decay, scaled, gate)]
    in_chunks(_chunk, one_head, states, runs, out[:, None], CHUNK)
    return out


def _one_each(tokens: tuple[Tensor, ...], states: Tensor, runs: Runs, out: Tensor) -> Tensor:
    decay, scaled, added, gate = tokens
    live, blocks, first = runs.kv_len > 0, runs.blocks(), (runs.kv_len < 2)[:, None]
    state = decay * states[blocks, 0, 0, 0].masked_fill(first, 0) + torch.where(
        first, added, scaled
    )
    out.copy_((state * gate).to(out.dtype).masked_fill(~live[:, None], 0))
    states[blocks[live], 0, 0, 0] = state[live]
    return out


def _chunk(tokens: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [1, n, D] of n tokens (decays, what they add, and what multiplies their outputs, of
    [1, n, D]), and the next state [1, 1, D]."""
    decay, added, gate = (each[0] for each in tokens)
    found = accumulated(decay, added, state[0, 0])
    return (found * gate)[None], found[None, -1:]
