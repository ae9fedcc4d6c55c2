"""A layer of the decoder that attends over depth, with short convolutions (Inkling 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.config import AttentionSpec, ConvolutionsSpec, DepthSpec, Specification
from penstock.layers.added_convolution import AddedConvolution
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.block import mlp_of
from penstock.layers.bounded_attention import OneInputAttention, OwnInputsAttention
from penstock.layers.depth import DepthAttention
from penstock.layers.norm import Norm, norm_of


class DepthBlock(Layer):
    """As `ConvolvedBlock`, but attention and feed-forward layer each read attention over depth.

    The last stream is the sum of the outputs since the last boundary. At a boundary, which is
    before a layer's attention has added its output, a new one begins.
    """

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        layer, stream = spec.block_layers[index], spec.residual
        self.kind = spec.layers[layer - 1 : layer + 1]
        states, attention = self.kind[0].attention, self.kind[1].attention
        assert isinstance(states, ConvolutionsSpec) and isinstance(attention, AttentionSpec)
        assert isinstance(stream.streams, DepthSpec)
        below, hidden, self.group = build.below(f"blocks.{index}"), stream.hidden, build.group
        self.begins = index % stream.streams.layers == 0
        inputs = 3 if attention.has_own_inputs else 1
        self.attention_depth = DepthAttention(build, hidden, inputs) if index else None
        self.attention_norms = [norm_of(build, hidden, stream.norm) for _ in range(inputs)]
        kind = OwnInputsAttention if attention.has_own_inputs else OneInputAttention
        self.attention = kind(below.below("attention"), stream, attention, layer)
        kv = states.state(build.group.size).channels - 2 * hidden  # channels before the outputs'
        self.attention_convolution, self.mlp_convolution = (
            AddedConvolution(build, layer - 1, first, hidden, states.width)
            for first in (kv, kv + hidden)
        )
        for convolution in (self.attention_convolution, self.mlp_convolution):
            convolution.factor = (states.width + 1) ** -0.5
        self.mlp_depth = DepthAttention(build, hidden)
        self.mlp_norm = norm_of(build, hidden, stream.norm)
        self.mlp = mlp_of(below.below("mlp"), stream, self.kind[1].mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`, of streams [T, N, hidden], which are replaced. The convolutions read every
        token, so all rows are computed."""
        streams = residual.x
        mixed = self.attention_convolution(self._mixed(streams, context), context)
        newest = self.group.summed(mixed).to(self.mlp_depth.query.dtype)
        complete = streams if self.begins else streams[:, :-1]
        if not self.begins:
            newest = newest + streams[:, -1]
        (x,) = self.mlp_depth(complete, newest)
        out = self.mlp_convolution(self.mlp.product(_normed(self.mlp_norm, x)), context)
        newest = (newest + self.group.summed(out)).to(streams.dtype)
        if self.begins:
            streams = torch.cat((streams, newest[:, None]), 1)
        else:
            streams[:, -1] = newest
        return residual._replace(x=streams if rows is None else streams.index_select(0, rows))

    def _mixed(self, streams: Tensor, context: StepContext) -> Tensor:
        """The output of attention [T, hidden]; a partial sum with several ranks."""
        if self.attention_depth is None:
            read = [streams[:, -1]] * len(self.attention_norms)
        else:
            read = self.attention_depth(streams[:, :-1], streams[:, -1])
        pairs = zip(self.attention_norms, read, strict=True)
        inputs = [_normed(norm, x.contiguous()) for norm, x in pairs]
        return self.attention.product_of(inputs, context)


def _normed(norm: Norm, x: Tensor) -> Tensor:
    return norm(Residual(x, None, partial=False))[0]
