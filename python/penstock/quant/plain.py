"""Weights as they are: a matrix in the model's dtype."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.quant.method import Stored


class Plain:
    """The unquantised method."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device

    def allocate(self, outputs: int, inputs: int) -> dict[str, Stored]:
        """One matrix [outputs, inputs]."""
        data = torch.empty((outputs, inputs), dtype=self.dtype, device=self.device)
        return {"weight": Stored(data, 0, 1)}

    def finish(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Nothing to repack."""
        return weights

    def apply(self, weights: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b."""
        return F.linear(x, weights["weight"], bias)

    def dequantize(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The matrix itself."""
        return weights["weight"]
