"""norm_linear on CUDA: one row is normalised by the product's own programs, more rows before it."""

from __future__ import annotations

from torch import Tensor

from ..linear.launch import multiply_normed
from ..rms_norm import NormInput


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
    return multiply_normed(NormInput(x, residual, scale, eps), weight, bias, gated)
