"""Attention over depth (block attention residuals, Kimi Team, arXiv:2603.15031).

Outputs of consecutive layers are summed up, and each complete sum is a stream of its own. A layer
reads attention over the streams: the query is learned, keys and values are the normalised streams.
Every rank has all streams.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.config import ResidualSpec
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.streams import begun
from penstock.weights import Target

EPS = 1e-6  # of the norm of streams, whatever config.json says of the others
ROWS = 1024  # tokens whose streams are in float32 at a time


class DepthAttention(Layer):
    """What a layer reads of the streams, once or several times. Computed in float32."""

    def __init__(self, build: Build, hidden: int, queries: int = 1) -> None:
        wide = torch.promote_types(build.dtype, torch.float32)
        shape = (hidden,) if queries == 1 else (queries, hidden)
        self.query = build.empty(*shape, dtype=wide)
        self.scale = hidden**-0.5

    def targets(self) -> dict[str, Target]:
        """Returns the target of the queries, the same on every rank."""
        return {"query": Target.whole(self.query)}

    def __call__(self, streams: Tensor, newest: Tensor) -> list[Tensor]:
        """Complete sums [T, N, hidden] and the newest one [T, hidden] -> what each query reads,
        [T, hidden] of the streams' dtype."""
        pieces = zip(streams.split(ROWS), newest.split(ROWS), strict=True)
        return list(torch.cat([self._read(*piece) for piece in pieces]).unbind(1))

    def _read(self, streams: Tensor, newest: Tensor) -> Tensor:
        """As `__call__` -> [T, queries, hidden]."""
        dtype = self.query.dtype
        every = torch.cat((streams.to(dtype), newest[:, None].to(dtype)), 1)
        length = torch.linalg.vector_norm(every, dim=-1)
        factor = torch.rsqrt((length * self.scale).square() + EPS)[:, None]
        queries = self.query.view(-1, every.shape[-1])
        scores = (queries @ every.mT) * factor * self.scale
        read: Tensor = (scores.softmax(-1) * factor) @ every
        return read.to(streams.dtype)


class DepthStreams(DepthAttention):
    """How the streams begin, as the embedding, and end, as what a last query reads."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        super().__init__(build, residual.hidden)
        self.group = build.group

    def begin(self, residual: Residual) -> Residual:
        """[T, hidden] -> streams [T, 1, hidden]."""
        return begun(residual, 1, self.group)

    def end(self, residual: Residual) -> Residual:
        """Streams [T, N, hidden] -> [T, hidden]."""
        (x,) = self(residual.x[:, :-1], residual.x[:, -1])
        return residual._replace(x=x)
