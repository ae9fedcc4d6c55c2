"""The layer of Gemma 3n, and its names in checkpoints."""

from __future__ import annotations

from torch import Tensor

from penstock import layers
from penstock.config import AltUpSpec, Specification
from penstock.layers import Build, Layer, Norm, Residual, norm_of
from penstock.layers.attention import StepContext

LAYER, BLOCK = "model.layers.{}.", "blocks.{}."
BLOCK_NAMES = {
    "model.altup_projections.{}": "streams.expand.{}",
    "model.altup_unembed_projections.{}": "streams.merge.{}",
    LAYER + "altup.correct_output_scale": BLOCK + "altup.scale",
    LAYER + "altup.correction_coefs": BLOCK + "altup.correction",
    LAYER + "altup.modality_router": BLOCK + "altup.router",
    LAYER + "altup.prediction_coefs": BLOCK + "altup.prediction",
    LAYER + "altup.router_norm": BLOCK + "altup.router_norm",
    LAYER + "laurel.linear_left": BLOCK + "laurel.narrow",
    LAYER + "laurel.linear_right": BLOCK + "laurel.widen",
    LAYER + "laurel.post_laurel_norm": BLOCK + "laurel.norm",
}


class Gemma3nBlock(Layer):
    """A decoder layer of one residual stream, which predicts and corrects all of them.

    A layer of low rank reads what attention reads. The first stream, corrected, is gated by the
    token's embedding of this layer, and added to all streams but the first.
    """

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        stream, below = spec.residual, build.below(f"blocks.{index}")
        assert spec.per_layer is not None and isinstance(stream.streams, AltUpSpec)
        self.kind, self.index = spec.layers[index], index
        self.partial = build.group.size > 1
        attention = self.kind.attention
        self.altup = layers.AltUp(build, stream, stream.streams)
        self.laurel = layers.Laurel(build, stream, stream.streams.laurel_rank)
        self.attention_norm = norm_of(build, stream.hidden, stream.norm)
        self.attention = layers.attention_of(below.below("attention"), stream, attention, index)
        self.attention_output_norm = norm_of(build, stream.hidden, stream.norm)
        self.mlp_norm = norm_of(build, stream.hidden, stream.norm)
        self.mlp = layers.mlp_of(below.below("mlp"), stream, self.kind.mlp)
        self.mlp_output_norm = norm_of(build, stream.hidden, stream.norm)
        self.per_layer = layers.PerLayerInput(build, stream, spec.per_layer)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`, of streams [T, streams, hidden]."""
        predicted = self.altup.predict(residual.x)
        computed = self._computed(predicted[:, self.altup.active], context, rows)
        assert context.layer_rows is not None
        own = context.layer_rows[:, self.index]
        if rows is not None:
            predicted, own = predicted.index_select(0, rows), own.index_select(0, rows)
        streams = self.altup.correct(predicted, computed)
        streams[:, 1:] += self.per_layer(self.altup.scaled_active(streams), own)[:, None]
        return Residual(streams, None, False)

    def _computed(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """The active stream after attention and feed-forward layer, [T, hidden] each."""
        normed, _ = self.attention_norm(Residual(x, None, False))
        mixed = self.attention.product(normed, context, rows)
        if rows is not None:
            x, normed = x.index_select(0, rows), normed.index_select(0, rows)
        x = x + self._own_norm(self.attention_output_norm, mixed)
        x = (x + self.laurel(normed)) * 2**-0.5
        inner = self.mlp.product(self.mlp_norm(Residual(x, None, False))[0])
        return x + self._own_norm(self.mlp_output_norm, inner)

    def _own_norm(self, norm: Norm, x: Tensor) -> Tensor:
        """Of an output, summed over the ranks."""
        return norm(Residual(x, None, self.partial))[0]
