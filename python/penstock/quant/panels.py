"""Plain weights, packed for the CPU backend's `linear`."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock import cpu
from penstock.quant.method import Weights
from penstock.quant.unquantized import Plain


class Panels(Plain):
    """Unquantized weights in panels of 16 outputs; float32 or bfloat16 activations.

    If bfloat16 represents all weights exactly, as in most checkpoints, they are stored in it for
    any model dtype: the products are equal, with half the memory traffic.
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
