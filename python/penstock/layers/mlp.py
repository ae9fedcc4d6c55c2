"""The gated feed-forward block."""

from __future__ import annotations

from torch import Tensor

from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear, RowLinear


class GatedMlp(Layer):
    """down(silu(gate(x)) * up(x)) (SwiGLU, arXiv:2002.05202), gate and up fused."""

    def __init__(self, build: Build, hidden: int, intermediate: int, bias: bool) -> None:
        parts = {"gate": intermediate, "up": intermediate}
        self.gate_up = ColumnLinear(build, parts, hidden, bias)
        self.down = RowLinear(build, hidden, intermediate, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down(self.gate_up.gated(x))
