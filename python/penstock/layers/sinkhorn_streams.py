"""Residual streams that are mixed with each other (mHC, arXiv:2512.24880).

What remains of the streams behind a layer is a product with a doubly stochastic matrix of the
token: streams of large numbers do not grow, however many layers there are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from penstock_kernels import sinkhorn
from torch import Tensor

from penstock.config import ResidualSpec, SinkhornSpec
from penstock.layers.base import Build, Layer
from penstock.layers.streams import StreamLogits, weighted_sum


class MixedPending(NamedTuple):
    """Streams that will be mixed, and to which the output of a layer will then be added."""

    streams: Tensor
    """[T, N, hidden]."""
    weights: Tensor
    """[T, N] float32, of the output in each stream."""
    mixing: Tensor
    """[T, N, N] float32: how much of each stream is in each new one."""

    def rows(self, rows: Tensor) -> MixedPending:
        """Returns these tokens alone."""
        return MixedPending(*(each.index_select(0, rows) for each in self))

    def plus(self, x: Tensor) -> Tensor:
        """Returns the new streams, of a layer's output x [T, hidden], which is no partial sum."""
        added = self.weights[:, :, None] * x[:, None]
        old = self.streams.to(added.dtype)
        return torch.baddbmm(added, self.mixing.mT, old).to(self.streams.dtype)


class MixingConnection(Layer):
    """What a layer reads of the streams, with which weights its output is added, and how they are
    mixed. All follow from all streams of the token."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        assert isinstance(residual.streams, SinkhornSpec)
        self.spec = residual.streams
        count = self.spec.count
        self.logits = StreamLogits(build, residual, [count, count, count**2])

    def __call__(self, streams: Tensor) -> tuple[Tensor, MixedPending]:
        """streams [T, N, hidden] -> (the layer's input [T, hidden], the streams for its output)."""
        reading, adding, mixing = self.logits(streams)
        square = mixing.unflatten(1, (self.spec.count,) * 2).contiguous()
        matrix = sinkhorn(square, self.spec.rounds, self.spec.least)
        weights = adding.sigmoid().mul_(2)
        x = weighted_sum(streams, reading, self.spec.least)
        return x, MixedPending(streams, weights, matrix)
