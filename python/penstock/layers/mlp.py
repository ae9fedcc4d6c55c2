"""The gated feed-forward block."""

from __future__ import annotations

from penstock_kernels.rms_norm import NormInput
from torch import Tensor

from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear, RowLinear


class GatedMlp(Layer):
    """down(silu(gate(x)) * up(x)) (SwiGLU, arXiv:2002.05202), gate and up fused."""

    def __init__(self, build: Build, hidden: int, intermediate: int, bias: bool) -> None:
        parts = {"gate": intermediate, "up": intermediate}
        self.gate_up = ColumnLinear(build, parts, hidden, bias)
        self.down = RowLinear(build, hidden, intermediate, bias)

    def __call__(self, norm_input: NormInput) -> tuple[Tensor, Tensor | None]:
        """([T, hidden] of the normalised sum, the sum), or what both add up to and None."""
        x, total = self.gate_up(norm_input, gated=True)
        return self.down(x, total)
