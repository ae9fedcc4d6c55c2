"""Weights as they are: a matrix in the model's dtype."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from penstock_kernels import linear, norm_linear
from penstock_kernels.linear import adds
from torch import Tensor

from penstock.quant.method import RmsScale, Weights, WeightTensor


class Plain(ABC):
    """The base class of the unquantized methods."""

    recordable = False

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """One matrix [outputs, inputs]."""
        data = torch.empty((outputs, inputs), dtype=self.dtype, device=self.device)
        return {"weight": WeightTensor(data, 0, 1)}

    def stacked(self, weights: Weights) -> Tensor:
        """Keeps the matrices of the experts as they are."""
        return weights["weight"]

    @abstractmethod
    def finish(self, weights: Weights) -> Weights:
        """Repacks the loaded matrix."""

    @abstractmethod
    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b."""

    @abstractmethod
    def dequantize(self, weights: Weights) -> Tensor:
        """The matrix itself."""


class Unquantized(Plain):
    """A plain matrix, with all fused ops."""

    def finish(self, weights: Weights) -> Weights:
        """Keeps the matrix."""
        return weights

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b."""
        return linear(x, weights["weight"], bias)

    def apply_gated(self, weights: Weights, x: Tensor) -> Tensor:
        """silu(x G^T) * (x U^T), where W = (G | U)."""
        return linear(x, weights["weight"], gated=True)

    def apply_normed(
        self,
        weights: Weights,
        x: Tensor,
        residual: Tensor | None,
        norm: RmsScale,
        bias: Tensor | None,
        gated: bool,
    ) -> tuple[Tensor, Tensor]:
        """Calls the fused op `norm_linear`."""
        return norm_linear(x, residual, norm.weight, norm.eps, weights["weight"], bias, gated)

    def apply_onto(
        self, weights: Weights, x: Tensor, bias: Tensor | None, residual: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Lets cuBLAS add the residual, rounded once, so that the next norm reads only the sum."""
        weight = weights["weight"]
        if bias is None and adds(x, weight):
            return residual.addmm_(x, weight.t()), None
        return linear(x, weight, bias), residual

    def dequantize(self, weights: Weights) -> Tensor:
        """The matrix itself."""
        return weights["weight"]


class Transposed(Plain):
    """The transpose, for CPUs on which the extension's kernels do not run: torch multiplies.

    For the matrices of a model of 12 million parameters, float32, one row in, MKL took 2.7 ms
    on the transpose and 3.4 ms on the matrix (1 thread), 1.9 and 2.8 ms (2 threads).
    """

    def finish(self, weights: Weights) -> Weights:
        """Stores the transpose."""
        return {"transpose": weights["weight"].t().contiguous()}

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b."""
        transpose = weights["transpose"]
        return torch.mm(x, transpose) if bias is None else torch.addmm(bias, x, transpose)

    def dequantize(self, weights: Weights) -> Tensor:
        """The matrix itself."""
        return weights["transpose"].t()
