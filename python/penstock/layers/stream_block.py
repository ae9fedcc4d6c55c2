"""One layer of a decoder with several residual streams."""

from __future__ import annotations

from torch import Tensor

from penstock.config import ResidualSpec, SinkhornSpec, Specification
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.block import attention_of, mlp_of
from penstock.layers.hash_experts import HashMoeMlp
from penstock.layers.norm import Norm, norm_of
from penstock.layers.sinkhorn_streams import MixedPending, MixingConnection
from penstock.layers.streams import HyperConnection, Pending

Connection = HyperConnection | MixingConnection


class StreamBlock(Layer):
    """A decoder layer whose attention and feed-forward layer each read a norm of a sum of the
    streams, and add to all of them. No matrix takes its norm into its own launch."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.kind = spec.layers[index]
        stream, below = spec.residual, build.below(f"blocks.{index}")
        self.group = build.group
        self.attention_streams = connection_of(build, stream)
        self.attention_norm = norm_of(build, stream.hidden, stream.norm)
        self.attention = attention_of(below.below("attention"), stream, self.kind.attention, index)
        self.mlp_streams = connection_of(build, stream)
        self.mlp_norm = norm_of(build, stream.hidden, stream.norm)
        self.mlp = mlp_of(below.below("mlp"), stream, self.kind.mlp)

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
        connection: Connection, norm: Norm, streams: Tensor
    ) -> tuple[Tensor, Pending | MixedPending]:
        """The normalised input of a layer [T, hidden], and the streams for its output."""
        x, pending = connection(streams)
        return norm(Residual(x, None, partial=False))[0], pending


class HashStreamBlock(StreamBlock):
    """As StreamBlock, whose experts follow from `StepContext.token_ids`."""

    def feed_forward(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """As `StreamBlock.feed_forward`."""
        ids = context.token_ids
        assert ids is not None and isinstance(self.mlp, HashMoeMlp)
        return self.mlp.product_of(x, ids if rows is None else ids.index_select(0, rows))


def connection_of(build: Build, residual: ResidualSpec) -> Connection:
    """Builds what is between the streams and a layer."""
    is_mixed = isinstance(residual.streams, SinkhornSpec)
    return (MixingConnection if is_mixed else HyperConnection)(build, residual)
