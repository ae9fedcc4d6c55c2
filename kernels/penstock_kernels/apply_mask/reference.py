"""Reference of apply_mask in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_mask(logits: Tensor, rows: Tensor, mask: Tensor) -> None:
    """See the public function. Bits are taken from bytes, least significant first."""
    vocab = logits.shape[-1]
    shifts = torch.arange(8, dtype=torch.uint8, device=mask.device)
    bits = (mask.view(torch.uint8).unsqueeze(-1) >> shifts) & 1
    forbidden = bits.flatten(1)[:, :vocab] == 0
    places = rows.long()
    logits[places] = logits[places].masked_fill(forbidden, -torch.inf)
