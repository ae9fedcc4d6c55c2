"""Reference of packed_linear."""

from __future__ import annotations

from torch import Tensor

from ..linear import reference
from .weight import PackedWeight


def packed_linear(
    x: Tensor, weight: PackedWeight, bias: Tensor | None = None, gated: bool = False
) -> Tensor:
    """The product with the dequantized matrix."""
    return reference.linear(x, weight.matrix(x.dtype), bias, gated)
