"""linear on CUDA: see `launch`."""

from __future__ import annotations

from torch import Tensor

from .launch import multiply


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, gated: bool = False) -> Tensor:
    """See the public function."""
    return multiply(x, weight, bias, gated)
