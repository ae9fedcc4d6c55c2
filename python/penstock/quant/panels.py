"""Plain weights, packed for the CPU backend's `linear`."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock import cpu
from penstock.quant.method import Weights
from penstock.quant.unquantized import Plain


class Panels(Plain):
    """Unquantized weights in panels of 16 outputs; float32 or bfloat16 activations.

    Weights whose numbers all fit bfloat16, as most checkpoints' do, are kept in it whatever the
    model's dtype: the products are the same, from half the memory traffic.
    """

    recordable = True

    def finish(self, weights: Weights) -> Weights:
        """Packs the matrix."""
        matrix = weights["weight"]
        return {"panels": cpu.pack(matrix), "outputs": torch.empty(len(matrix), 0)}

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b."""
        return cpu.linear(x, weights["panels"], len(weights["outputs"]), bias)

    def dequantize(self, weights: Weights) -> Tensor:
        """The matrix itself."""
        panels = weights["panels"]
        matrix = panels.transpose(1, 2).reshape(-1, panels.shape[1])
        return matrix[: len(weights["outputs"])].to(self.dtype)
