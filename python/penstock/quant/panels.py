"""Plain weights, packed for the CPU backend's `linear`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from penstock import cpu
from penstock.quant.unquantized import Unquantized


class Panels(Unquantized):
    """Unquantised weights in panels of 16 outputs; float32 or bfloat16 activations.

    Weights whose numbers all fit bfloat16, as most checkpoints' do, are kept in it whatever the
    model's dtype: the products are the same, from half the memory traffic.
    """

    def finish(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Packs the matrix."""
        matrix = weights["weight"]
        return {"panels": cpu.pack(matrix), "outputs": torch.empty(len(matrix), 0)}

    def product(self, weights: Mapping[str, Tensor], x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b."""
        return cpu.linear(x, weights["panels"], len(weights["outputs"]), bias)

    def dequantize(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The matrix itself."""
        panels = weights["panels"]
        matrix = panels.transpose(1, 2).reshape(-1, panels.shape[1])
        return matrix[: len(weights["outputs"])].to(self.dtype)
