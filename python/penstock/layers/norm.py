"""Root mean square normalisation."""

from __future__ import annotations

from penstock_kernels import rms_norm
from torch import Tensor

from penstock.layers.base import Build, Layer
from penstock.weights import Target


class RmsNorm(Layer):
    """RMSNorm (arXiv:1910.07467) with a learned scale."""

    def __init__(self, build: Build, size: int, eps: float) -> None:
        self.weight = build.empty(size)
        self.eps = eps

    def targets(self) -> dict[str, Target]:
        """The scale, whole on every rank."""
        return {"weight": Target.whole(self.weight)}

    def __call__(self, x: Tensor) -> Tensor:
        """[T, size] -> [T, size]."""
        out = rms_norm(x, self.weight, self.eps)
        assert isinstance(out, Tensor)
        return out

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(normalised x + residual, x + residual)."""
        out = rms_norm(x, self.weight, self.eps, residual)
        assert isinstance(out, tuple)
        return out
