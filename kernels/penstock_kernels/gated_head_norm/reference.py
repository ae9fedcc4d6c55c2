"""Reference of gated_head_norm in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from ..shared import wide


def gated_head_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the public function."""
    heads = wide(x)
    normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
    return (normed * wide(weight) * silu(wide(gate))).to(x.dtype).contiguous()
