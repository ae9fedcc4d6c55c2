"""The gated feed-forward block."""

from __future__ import annotations

from penstock.config import MlpSpec
from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.norm import RmsNorm
from penstock.layers.residual import Residual


class GatedMlp(Layer):
    """down(silu(gate(x)) * up(x)) (SwiGLU, arXiv:2002.05202), gate and up fused."""

    def __init__(self, build: Build, hidden: int, spec: MlpSpec) -> None:
        parts = {"gate": spec.intermediate, "up": spec.intermediate}
        self.gate_up = ColumnLinear(build, parts, hidden, spec.bias)
        self.down = RowLinear(build, hidden, spec.intermediate, spec.bias)

    def __call__(self, norm: RmsNorm, residual: Residual) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the layer."""
        x, total = self.gate_up(norm, residual, gated=True)
        return self.down(x, total)
