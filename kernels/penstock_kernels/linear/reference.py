"""Reference of linear in torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See the public function; torch accumulates 16-bit products in float32."""
    return F.linear(x, weight, bias)
