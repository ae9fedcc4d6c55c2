"""The layer of MiniMax-Text-01: outputs are added to what layers read."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from penstock.config import Specification, SumFactors
from penstock.layers import Build, Layer, Residual, attention_of, mlp_of, norm_of
from penstock.layers.attention import StepContext


class NormedBlock(Layer):
    """A decoder layer with a norm before attention and one before the feed-forward layer. Each
    norm's output is read, and is what the layer's output is added to (DeepNorm's factors,
    arXiv:2203.00555). No matrix takes its norm into its own launch."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.kind = spec.layers[index]
        stream, below = spec.residual, build.below(f"blocks.{index}")
        self.partial = build.group.size > 1
        of_attention, of_mlp = (
            replace(stream, multiplier=factors.output)
            for factors in (self.kind.attention_sum, self.kind.mlp_sum)
        )
        path = below.below("attention")
        self.attention_norm = norm_of(build, stream.hidden, stream.norm)
        self.attention = attention_of(path, of_attention, self.kind.attention, index)
        self.mlp_norm = norm_of(build, stream.hidden, stream.norm)
        self.mlp = mlp_of(below.below("mlp"), of_mlp, self.kind.mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        x, _ = self.attention_norm(residual)
        mixed = self.attention.product(x, context, rows)
        x = x if rows is None else x.index_select(0, rows)
        x, _ = self.mlp_norm(self._sum(mixed, x, self.kind.attention_sum))
        return self._sum(self.mlp.product(x), x, self.kind.mlp_sum)

    def _sum(self, output: Tensor, read: Tensor, factors: SumFactors) -> Residual:
        """The stream after a layer that reads `read` and yields `output`, [T, hidden] each; the
        layer itself has multiplied its output."""
        return Residual(output, read * factors.read, self.partial)
