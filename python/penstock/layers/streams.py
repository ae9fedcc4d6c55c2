"""Several residual streams (hyper-connections, arXiv:2409.19606; their weights: arXiv:2512.24880).

A step has streams [T, N, hidden], the same on every rank: a layer's partial output is summed before
it is added. Weights are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from penstock_kernels import linear
from torch import Tensor

from penstock.config import ResidualSpec, SinkhornSpec, StreamsSpec
from penstock.layers.base import Build, Layer, Residual
from penstock.parallel import Group
from penstock.weights import Target


class StreamLogits(Layer):
    """Numbers of each token from all its streams: a projection of their RMSNorm, which has no
    weight, times a factor of each of its parts, plus a base. Replicated on every rank, and floats
    in any weight format."""

    def __init__(self, build: Build, residual: ResidualSpec, parts: Sequence[int]) -> None:
        """`parts`: how many numbers have a factor of their own."""
        assert isinstance(residual.streams, StreamsSpec | SinkhornSpec)
        wide = torch.promote_types(build.dtype, torch.float32)
        self.parts, self.eps = list(parts), residual.norm.eps
        inputs, outputs = residual.streams.count * residual.hidden, sum(parts)
        self.matrix = build.empty(outputs, inputs, dtype=wide)
        self.base = build.empty(outputs, dtype=wide)
        self.scale = build.empty(len(parts), dtype=wide)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the matrix, the base and the factors."""
        tensors = {"matrix": self.matrix, "base": self.base, "scale": self.scale}
        return {name: Target.whole(tensor) for name, tensor in tensors.items()}

    def finish(self) -> None:
        """Multiplies the rows of each part by its factor."""
        for rows, scale in zip(self.matrix.split(self.parts), self.scale, strict=True):
            rows.mul_(scale)

    def __call__(self, streams: Tensor) -> tuple[Tensor, ...]:
        """streams [T, N, hidden] -> the parts, [T, part] each, in float32."""
        flat = streams.flatten(1).to(self.matrix.dtype)
        factor = torch.rsqrt(flat.square().mean(1, keepdim=True) + self.eps)
        numbers: Tensor = linear(flat, self.matrix, None) * factor + self.base
        return torch.split(numbers, self.parts, 1)


class Pending(NamedTuple):
    """Streams to which the output of a layer will be added."""

    streams: Tensor
    """[T, N, hidden]."""
    weights: Tensor
    """[T, N] float32, of the output in each stream."""

    def rows(self, rows: Tensor) -> Pending:
        """Returns these tokens alone."""
        return Pending(*(each.index_select(0, rows) for each in self))

    def plus(self, x: Tensor) -> Tensor:
        """Returns the streams with a layer's output x [T, hidden], which is no partial sum."""
        added = self.weights[:, :, None] * x[:, None]
        return added.add_(self.streams).to(self.streams.dtype)


class HyperConnection(Layer):
    """What a layer reads of the streams, and with which weights its output is added (iHC of
    Hunyuan 4). Both weights are sigmoids of numbers from all streams."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        assert isinstance(residual.streams, StreamsSpec)
        self.spec = residual.streams
        self.logits = StreamLogits(build, residual, [self.spec.count] * 2)

    def __call__(self, streams: Tensor) -> tuple[Tensor, Pending]:
        """streams [T, N, hidden] -> (the layer's input [T, hidden], the streams for its output)."""
        reading, adding = self.logits(streams)
        weights = adding.sigmoid().mul_(self.spec.factor).add_(self.spec.least)
        return weighted_sum(streams, reading, self.spec.least), Pending(streams, weights)


class MeanStreams(Layer):
    """How the streams begin, as copies of the embedding, and end, in their mean."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        assert isinstance(residual.streams, StreamsSpec | SinkhornSpec)
        self.spec, self.group = residual.streams, build.group

    def begin(self, residual: Residual) -> Residual:
        """[T, hidden] -> streams [T, N, hidden]."""
        return begun(residual, self.spec.count, self.group)

    def end(self, residual: Residual) -> Residual:
        """Streams [T, N, hidden] -> [T, hidden]."""
        return residual._replace(x=residual.x.mean(1))


class Streams(MeanStreams):
    """As MeanStreams, which end in a weighted sum."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        super().__init__(build, residual)
        self.logits = StreamLogits(build, residual, [self.spec.count])

    def end(self, residual: Residual) -> Residual:
        """As `MeanStreams.end`."""
        (reading,) = self.logits(residual.x)
        return residual._replace(x=weighted_sum(residual.x, reading, self.spec.least))


def begun(residual: Residual, count: int, group: Group) -> Residual:
    """Returns `count` streams [T, N, hidden] that are copies of the sum [T, hidden]."""
    x = group.summed(residual.x) if residual.partial else residual.x
    total = x if residual.total is None else x + residual.total
    streams = total[:, None].expand(-1, count, -1).contiguous()
    return Residual(streams, None, partial=False)


def weighted_sum(streams: Tensor, logits: Tensor, least: float) -> Tensor:
    """Returns the sum [T, hidden] of streams [T, N, hidden] times sigmoids of logits [T, N], to
    which `least` is added."""
    weights = logits.sigmoid() + least
    return (weights[:, :, None] * streams).sum(1).to(streams.dtype)
