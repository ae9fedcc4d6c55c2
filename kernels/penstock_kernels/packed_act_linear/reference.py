"""Reference of packed_act_linear in torch."""

from __future__ import annotations

from torch import Tensor

from ..act_mul.reference import act_mul
from ..packed_linear import PackedWeight
from ..packed_linear.reference import packed_linear


def packed_act_linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """`act_mul`, then the product with the dequantized matrix."""
    return packed_linear(act_mul(x), weight, bias)
