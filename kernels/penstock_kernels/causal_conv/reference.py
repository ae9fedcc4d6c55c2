"""Reference of causal_conv in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu as apply_silu

from ..recurrence import Runs
from ..shared import wide


def causal_conv(
    x: Tensor,
    weight: Tensor,
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    silu: bool = True,
    taps: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    if out is None:
        out = x.new_empty(x.shape)

    def convolved(inputs: Tensor, rows: slice = slice(None)) -> Tensor:
        """[n, C, W] of these rows -> [n, C]."""
        weights = wide(weight)
        if taps is not None:
            each = len(weight) // taps.shape[1]
            weights = weights + wide(taps[rows]).repeat_interleave(each, 1)
        total = (wide(inputs) * weights).sum(-1)
        total = total if bias is None else total + wide(bias)
        return (apply_silu(total) if silu else total).to(x.dtype)

    if runs.query_start is None:
        return _one_each(x, states, runs, out, convolved)
    width = weight.shape[1]
    for rows, block, begun in runs.each():
        state = states[block, 0, 0]
        past = state.T if begun else torch.zeros_like(state.T)
        inputs = torch.cat((past, x[rows]))  # [W - 1 + n, C]
        out[rows] = convolved(inputs.unfold(0, width, 1), rows)
        state.copy_(inputs[len(inputs) - width + 1 :].T)
    return out


def _one_each(
    x: Tensor, states: Tensor, runs: Runs, out: Tensor, convolved: Callable[[Tensor], Tensor]
) -> Tensor:
    live, blocks = runs.kv_len > 0, runs.blocks()
    past = states[blocks, 0, 0]  # [S, C, W - 1]
    past = past.masked_fill((runs.kv_len < 2)[:, None, None], 0)
    inputs = torch.cat((past, x[:, :, None]), 2)
    out.copy_(convolved(inputs).masked_fill(~live[:, None], 0))
    states[blocks[live], 0, 0] = inputs[live, :, 1:]
    return out
