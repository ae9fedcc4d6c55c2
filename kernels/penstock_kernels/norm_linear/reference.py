"""Reference of norm_linear in torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..rms_norm.reference import rms_norm
from ..shared import wide
from ..silu_mul.reference import silu_mul


def norm_linear(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    gated: bool = False,
) -> tuple[Tensor, Tensor]:
    """See the public function."""
    total = x if residual is None else x + residual
    normed = rms_norm(total, scale, eps)
    assert isinstance(normed, Tensor)
    if gated:
        return silu_mul(F.linear(wide(normed), wide(weight))).to(x.dtype), total
    return F.linear(normed, weight, bias), total
