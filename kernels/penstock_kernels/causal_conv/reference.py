"""Reference of causal_conv in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from ..recurrence import Runs
from ..shared import wide


def causal_conv(
    x: Tensor,
    weight: Tensor,
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    if out is None:
        out = x.new_empty(x.shape)
    if runs.query_start is None:
        return _one_each(x, weight, states, runs, out)
    width = weight.shape[1]
    for rows, block, begun in runs.each():
        state = states[block, 0, 0]
        past = state.T if begun else torch.zeros_like(state.T)
        inputs = torch.cat((past, x[rows]))  # [W - 1 + n, C]
        out[rows] = _activated(inputs.unfold(0, width, 1), weight).to(x.dtype)
        state.copy_(inputs[len(inputs) - width + 1 :].T)
    return out


def _one_each(x: Tensor, weight: Tensor, states: Tensor, runs: Runs, out: Tensor) -> Tensor:
    live, blocks = runs.kv_len > 0, runs.blocks()
    past = states[blocks, 0, 0]  # [S, C, W - 1]
    past = past.masked_fill((runs.kv_len < 2)[:, None, None], 0)
    inputs = torch.cat((past, x[:, :, None]), 2)
    activated = _activated(inputs, weight).to(x.dtype)
    out.copy_(activated.masked_fill(~live[:, None], 0))
    states[blocks[live], 0, 0] = inputs[live, :, 1:]
    return out


def _activated(inputs: Tensor, weight: Tensor) -> Tensor:
    """[n, C, W] -> [n, C]."""
    return silu((wide(inputs) * wide(weight)).sum(-1))
