"""A layer of the decoder with short convolutions of both outputs (Inkling)."""

from __future__ import annotations

from torch import Tensor

from penstock.config import AttentionSpec, ConvolutionsSpec, MlpSpec, Specification
from penstock.layers.added_convolution import AddedConvolution, ScaledConvolution
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.block import mlp_of
from penstock.layers.norm import norm_of
from penstock.layers.relative_attention import RelativeAttention


class ConvolvedBlock(Layer):
    """As `Block`, but attention and feed-forward layer each add an output that went through a
    convolution. In the specification, the states of all its convolutions are the layer before.

    A dense feed-forward layer's output has a learned factor. Outputs are not summed over the ranks
    before their convolutions: the next norm sums them, as in other blocks.
    """

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        layer, stream = spec.block_layers[index], spec.residual
        self.kind = spec.layers[layer - 1 : layer + 1]
        states, attention, mlp = self.kind[0].attention, self.kind[1].attention, self.kind[1].mlp
        assert isinstance(states, ConvolutionsSpec) and isinstance(attention, AttentionSpec)
        self.partial = build.group.size > 1
        below, hidden = build.below(f"blocks.{index}"), stream.hidden
        self.attention_norm = norm_of(build, hidden, stream.norm)
        self.attention = RelativeAttention(below.below("attention"), stream, attention, layer)
        kv = states.state(build.group.size).channels - 2 * hidden  # channels before the outputs'
        of_states = build, layer - 1
        self.attention_convolution = AddedConvolution(*of_states, kv, hidden, states.width)
        self.mlp_norm = norm_of(build, hidden, stream.norm)
        self.mlp = mlp_of(below.below("mlp"), stream, mlp)
        kind = ScaledConvolution if isinstance(mlp, MlpSpec) else AddedConvolution
        self.mlp_convolution = kind(*of_states, kv + hidden, hidden, states.width)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`. The convolutions read every token, so all rows are computed."""
        qkv, total = self.attention.qkv(self.attention_norm, residual)
        mixed = self.attention.out.product(self.attention.mix(qkv, context))
        mixed = self.attention_convolution(mixed, context)
        x, total = self.mlp_norm(Residual(mixed, total, self.partial))
        out = self.mlp_convolution(self.mlp.product(x), context)
        if rows is not None:
            out, total = out.index_select(0, rows), total.index_select(0, rows)
        return Residual(out, total, self.partial)
