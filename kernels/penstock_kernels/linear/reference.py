"""Reference of linear in torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..act_mul.reference import act_mul
from ..shared import wide


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, gated: bool = False) -> Tensor:
    """See the public function; torch accumulates 16-bit products in float32."""
    if gated and x.is_cuda:  # no kernel does this, and float32 weights would not fit beside them
        return act_mul(F.linear(x, weight))
    if gated:
        return act_mul(F.linear(wide(x), wide(weight))).to(x.dtype)
    return F.linear(x, weight, bias)
