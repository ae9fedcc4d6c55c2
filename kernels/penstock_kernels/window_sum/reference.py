"""Reference of window_sum in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..shared import wide


def window_sum(cache: Tensor, rows: Tensor, counts: Tensor, bias: Tensor, first: int) -> Tensor:
    """See the public function."""
    tokens, wanted = rows.shape[1], rows.long()
    windows = tokens // len(bias)
    gone = torch.arange(tokens, device=rows.device) < tokens - counts[:, None]
    wanted = wanted.masked_fill(gone, 0)
    size = bias.shape[1] // windows
    values, gates = [], []
    for window, own in enumerate(wanted.chunk(windows, 1)):
        column = first + window * size
        values.append(wide(cache[:, column : column + size][own]))
        column += bias.shape[1]
        gate = wide(cache[:, column : column + size][own])
        gates.append(gate + bias[:, window * size : (window + 1) * size])
    weights = torch.cat(gates, 1).masked_fill_(gone[:, :, None], -torch.inf).softmax(1)
    summed = weights.mul_(torch.cat(values, 1)).masked_fill_(gone[:, :, None], 0).sum(1)
    return summed.to(cache.dtype)
