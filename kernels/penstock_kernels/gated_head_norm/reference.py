"""Reference of gated_head_norm in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from ..shared import wide


def gated_head_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, gate_first: bool = False
) -> Tensor:
    """See the public function."""
    opened = silu(wide(gate))
    heads = wide(x) * opened if gate_first else wide(x)
    normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
    scaled = normed * wide(weight)
    return (scaled if gate_first else scaled * opened).to(x.dtype).contiguous()
