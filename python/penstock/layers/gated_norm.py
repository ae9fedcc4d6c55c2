"""A norm with a gate of low rank (A.X K2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from penstock_kernels import linear
from torch import Tensor

from penstock.config import ResidualSpec
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.norm import RmsNorm
from penstock.weights import Target


class GatedNorm(Layer):
    """RMSNorm, whose output y is multiplied by the sigmoid of widen(silu(narrow(y)))."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        size, inner = residual.hidden, residual.gate_rank
        self.norm = RmsNorm(build, size, residual.norm)
        self.weight, self.eps = self.norm.weight, self.norm.eps
        self.narrow, self.widen = build.empty(inner, size), build.empty(size, inner)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of both matrices, replicated on every rank. They are floats whatever
        the checkpoint's format is."""
        matrices = {"narrow": self.narrow, "widen": self.widen}
        return {f"{name}.weight": Target.whole(matrix) for name, matrix in matrices.items()}

    def __call__(self, residual: Residual) -> tuple[Tensor, Tensor]:
        """Returns (the gated norm of the sum, the sum), [T, size] each."""
        x, total = self.norm(residual)
        gate = linear(F.silu(linear(x, self.narrow, None)), self.widen, None)
        return gated(x, gate), total


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """Returns x times the sigmoid of `gate`, which is of x's shape or broadcast to it."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x * gate.to(wide).sigmoid()).to(x.dtype)
