"""Reference of norm_linear in torch."""

from __future__ import annotations

from torch import Tensor

from ..linear.reference import linear
from ..rms_norm.reference import rms_norm


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
    return linear(normed, weight, bias, gated), total
