"""A layer of the decoder with compressed convolutional attention and a scaled stream (ZAYA1)."""

from __future__ import annotations

from torch import Tensor

from penstock.config import AttentionSpec, CcaSpec, MoeSpec, Specification
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.cca import CcaAttention
from penstock.layers.mlp_router import MlpRoutedMoe
from penstock.layers.norm import norm_of
from penstock.layers.scaled_stream import SumScale


class CcaBlock(Layer):
    """Attention, then experts, with norms before them, and scales where their outputs are added. In
    the specification, the states of attention's convolutions are the layer before."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        layer, stream = spec.block_layers[index], spec.residual
        self.kind = spec.layers[layer - 1 : layer + 1]
        states, attention, moe = self.kind[0].attention, self.kind[1].attention, self.kind[1].mlp
        assert isinstance(states, CcaSpec) and isinstance(attention, AttentionSpec)
        assert isinstance(moe, MoeSpec)
        self.group, self.dtype = build.group, build.dtype
        below, hidden = build.below(f"blocks.{index}"), stream.hidden
        self.attention_norm = norm_of(build, hidden, stream.norm)
        self.attention = CcaAttention(below.below("attention"), stream, attention, states, layer)
        self.attention_scale = SumScale(build, hidden)
        self.mlp_norm = norm_of(build, hidden, stream.norm)
        self.mlp = MlpRoutedMoe(below.below("mlp"), stream, moe)
        self.mlp_scale = SumScale(build, hidden)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`, of a `ScaledStream`."""
        stream = residual.x
        qkv, _ = self.attention.qkv(self.attention_norm, self._rounded(stream))
        mixed = self.attention.mix(qkv, context)
        if rows is not None:
            mixed, stream = mixed.index_select(0, rows), stream.index_select(0, rows)
        mixed = self.group.summed(self.attention.out.product(mixed))
        stream = self.attention_scale(mixed, stream)
        x, _ = self.mlp_norm(self._rounded(stream))
        out = self.group.summed(self.mlp.product(x, context, rows))
        return Residual(self.mlp_scale(out, stream), None, partial=False)

    def _rounded(self, stream: Tensor) -> Residual:
        """What norms read."""
        return Residual(stream.to(self.dtype), None, partial=False)
