"""Reference of packed_norm_linear in torch."""

from __future__ import annotations

from torch import Tensor

from ..norm_linear import reference
from ..packed_linear import PackedWeight


def packed_norm_linear(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    weight: PackedWeight,
    bias: Tensor | None = None,
    gated: bool = False,
) -> tuple[Tensor, Tensor]:
    """`norm_linear` with the dequantized matrix."""
    return reference.norm_linear(x, residual, scale, eps, weight.matrix(x.dtype), bias, gated)
