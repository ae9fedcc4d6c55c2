"""Root mean square normalisation."""

from __future__ import annotations

from penstock_kernels.rms_norm import NormInput
from torch import Tensor

from penstock.layers.base import Build, Layer
from penstock.weights import Target


class RmsNorm(Layer):
    """RMSNorm (arXiv:1910.07467) with a learned scale."""

    def __init__(self, build: Build, size: int, eps: float) -> None:
        self.group = build.group
        self.weight = build.empty(size)
        self.eps = eps

    def targets(self) -> dict[str, Target]:
        """The scale, whole on every rank."""
        return {"weight": Target.whole(self.weight)}

    def norm_input(self, x: Tensor, residual: Tensor | None) -> NormInput:
        """x + residual, [T, size] each, to be normalised by the linear that follows.

        x is this rank's part: the ranks' sum is x.
        """
        return NormInput(x, residual, self.weight, self.eps)

    def __call__(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, size]: normalised sum of all ranks' x and the residual, if any."""
        return self.group.normed(self.norm_input(x, residual))[0]
