"""packed_act_linear on CUDA: rows that are multiplied as float8 are gated and rounded at once."""

from __future__ import annotations

from torch import Tensor

from ..act_mul import act_mul
from ..packed_linear import PackedWeight, float8
from ..packed_linear.triton import packed_linear


def packed_act_linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """See the public function."""
    if weight.outputs and float8.takes(x, weight):
        return float8.multiply(float8.gated(x), weight, bias, x.dtype)
    return packed_linear(act_mul(x), weight, bias)
