"""One layer of a decoder with several residual streams, and how the streams begin and end."""

from __future__ import annotations

from torch import Tensor

from penstock.config import (
    AltUpSpec,
    DepthSpec,
    GatedStreamsSpec,
    LayerSpec,
    ResidualSpec,
    SinkhornSpec,
    Specification,
)
from penstock.layers.altup import AltUpStreams
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.block import attention_of, mlp_of
from penstock.layers.depth import DepthStreams
from penstock.layers.gated_streams import GatedConnection, GatedStreams
from penstock.layers.hash_experts import HashMoeMlp
from penstock.layers.norm import Norm, norm_of
from penstock.layers.scaled_stream import ScaledStream
from penstock.layers.sinkhorn_streams import MixedPending, MixingConnection
from penstock.layers.streams import HyperConnection, MeanStreams, Pending, Streams

Connection = HyperConnection | MixingConnection | GatedConnection
StreamEnds = MeanStreams | GatedStreams | AltUpStreams | DepthStreams | ScaledStream


class StreamBlock(Layer):
    """A decoder layer whose attention and feed-forward layer each read what a connection makes of
    the streams, and add to all of them. No matrix takes its norm into its own launch."""

    def __init__(
        self, spec: Specification, build: Build, index: int, layer: int | None = None
    ) -> None:
        """`index`: of the block; `layer`: its layer of the specification, if not the same."""
        layer = index if layer is None else layer
        own, stream = spec.layers[layer], spec.residual
        self.kind: tuple[LayerSpec, ...] = (own,)
        self.group, below = build.group, build.below(f"blocks.{index}")
        self.attention_streams, self.attention_norm = _connection(build, stream)
        self.attention = attention_of(below.below("attention"), stream, own.attention, layer)
        self.mlp_streams, self.mlp_norm = _connection(build, stream)
        self.mlp = mlp_of(below.below("mlp"), stream, own.mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`, of streams: `residual.x` is [T, N, hidden]."""
        x, pending = self._input(self.attention_streams, self.attention_norm, residual.x)
        mixed = self.group.summed(self.attention.product(x, context, rows))
        streams = (pending if rows is None else pending.rows(rows)).plus(mixed)
        x, pending = self._input(self.mlp_streams, self.mlp_norm, streams)
        out = self.group.summed(self.feed_forward(x, context, rows))
        return residual._replace(x=pending.plus(out))

    def feed_forward(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """The output of the feed-forward layer for its normalised input, [T, hidden] each, or of
        `rows` of the step alone; a partial sum with several ranks."""
        return self.mlp.product(x)

    @staticmethod
    def _input(
        connection: Connection, norm: Norm | None, streams: Tensor
    ) -> tuple[Tensor, Pending | MixedPending]:
        """The normalised input of a layer [T, hidden], and the streams for its output."""
        x, pending = connection(streams)
        if norm is not None:
            x, _ = norm(Residual(x, None, partial=False))
        return x, pending


class HashStreamBlock(StreamBlock):
    """As StreamBlock, whose experts follow from `StepContext.token_ids`."""

    def feed_forward(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """As `StreamBlock.feed_forward`."""
        ids = context.token_ids
        assert ids is not None and isinstance(self.mlp, HashMoeMlp)
        return self.mlp.product_of(x, ids if rows is None else ids.index_select(0, rows))


def _connection(build: Build, stream: ResidualSpec) -> tuple[Connection, Norm | None]:
    """The connection of a layer, and the norm behind it; None = its streams are normalised."""
    if isinstance(stream.streams, GatedStreamsSpec):
        return GatedConnection(build, stream), None
    is_mixed = isinstance(stream.streams, SinkhornSpec)
    connection = (MixingConnection if is_mixed else HyperConnection)(build, stream)
    return connection, norm_of(build, stream.hidden, stream.norm)


def streams_of(build: Build, spec: Specification) -> StreamEnds | None:
    """Builds how the streams of a model begin and end; None = it has one."""
    streams = spec.residual.streams
    if isinstance(streams, AltUpSpec):
        return AltUpStreams(build, spec.residual, streams)
    if isinstance(streams, GatedStreamsSpec):
        return GatedStreams(build, spec.residual)
    if isinstance(streams, DepthSpec):
        return DepthStreams(build, spec.residual)
    if streams is None:
        return None
    is_mean = isinstance(streams, SinkhornSpec) and streams.averaged
    return (MeanStreams if is_mean else Streams)(build, spec.residual)
