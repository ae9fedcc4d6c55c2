"""Root mean square normalisation."""

from __future__ import annotations

from penstock_kernels.rms_norm import NormInput
from torch import Tensor

from penstock.config import NormSpec
from penstock.layers.base import Build, Layer
from penstock.layers.residual import Residual
from penstock.weights import Target


class RmsNorm(Layer):
    """RMSNorm (arXiv:1910.07467) with a learned scale."""

    def __init__(self, build: Build, size: int, spec: NormSpec) -> None:
        self.group = build.group
        self.weight = build.empty(size)
        self.eps = spec.eps

    def targets(self) -> dict[str, Target]:
        """The weight, whole on every rank."""
        return {"weight": Target.whole(self.weight)}

    def __call__(self, residual: Residual) -> tuple[Tensor, Tensor]:
        """Returns (the normalised sum, the sum), [T, size] each, the same on every rank."""
        norm_input = NormInput(residual.x, residual.total, self.weight, self.eps)
        return self.group.normed(norm_input) if residual.partial else norm_input.normed()
