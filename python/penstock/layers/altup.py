"""Alternating updates and learned augmented residual layers (Gemma 3n).

Of several residual streams a layer computes one. Before, it predicts all of them; afterwards it
corrects them by what was predicted wrongly. Source: Baykal et al., Alternating Updates for
Efficient Transformers, arXiv:2301.13310. Every rank has all streams.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.config import AltUpSpec, ResidualSpec
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.norm import norm_of
from penstock.layers.per_layer import WholeLinear
from penstock.weights import Target

LEAST_SQUARE = 1e-5  # of a projected stream, on average, where it is scaled


class AltUp(Layer):
    """Predicts and corrects the streams of a layer."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: AltUpSpec) -> None:
        count, self.active = spec.count, spec.active
        self.prediction = WholeLinear(build, count * count, count)
        self.correction = WholeLinear(build, count, count)
        self.router = WholeLinear(build, count, residual.hidden)
        self.router_norm = norm_of(build, residual.hidden, residual.norm)
        self.router_scale = 1 / residual.hidden
        self.scale = build.empty(residual.hidden)
        self.scaled = spec.scaled

    def targets(self) -> dict[str, Target]:
        """Returns the target of the active stream's factors, replicated on every rank."""
        return {"scale": Target.whole(self.scale)}

    def predict(self, streams: Tensor) -> Tensor:
        """streams [T, streams, hidden] -> their predictions, of the same shape."""
        count = streams.shape[1]
        mixed = self.prediction(self._modalities(streams[:, self.active]))
        return torch.baddbmm(streams, mixed.view(-1, count, count), streams)

    def correct(self, predicted: Tensor, computed: Tensor) -> Tensor:
        """predicted [T, streams, hidden] and the layer's output [T, hidden] -> [T, streams,
        hidden]."""
        wrong = computed - predicted[:, self.active]
        shares = self.correction(self._modalities(computed)) + 1
        return predicted + shares[:, :, None] * wrong[:, None]

    def scaled_active(self, corrected: Tensor) -> Tensor:
        """The active stream as the layer's embedding reads it: [T, streams, hidden] -> [T,
        hidden]."""
        stream = corrected[:, self.active]
        return stream * self.scale if self.scaled else stream

    def _modalities(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, streams]; the tanh is of float32, as transformers has it."""
        normed, _ = self.router_norm(Residual(x, None, False))
        return torch.tanh(self.router(normed * self.router_scale).float()).to(x.dtype)


class Laurel(Layer):
    """x + norm(widen(narrow(x))), of low rank. Source: Menghani et al., LAuReL: Learned Augmented
    Residual Layer, arXiv:2411.07501."""

    def __init__(self, build: Build, residual: ResidualSpec, rank: int) -> None:
        self.narrow = WholeLinear(build, rank, residual.hidden)
        self.widen = WholeLinear(build, residual.hidden, rank)
        self.norm = norm_of(build, residual.hidden, residual.norm)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return x + self.norm(Residual(self.widen(self.narrow(x)), None, False))[0]


class AltUpStreams(Layer):
    """How the streams begin, as projections of the embedding, and end, in the mean of their
    projections. The first one is not projected."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: AltUpSpec) -> None:
        hidden, others = residual.hidden, spec.count - 1
        self.group = build.group
        self.expand = [WholeLinear(build, hidden, hidden) for _ in range(others)]
        self.merge = [WholeLinear(build, hidden, hidden) for _ in range(others)]

    def begin(self, residual: Residual) -> Residual:
        """[T, hidden] -> streams [T, streams, hidden]."""
        x = self.group.summed(residual.x) if residual.partial else residual.x
        streams = [x, *(_as_large(project(x), x) for project in self.expand)]
        return Residual(torch.stack(streams, 1), None, False)

    def end(self, residual: Residual) -> Residual:
        """Streams [T, streams, hidden] -> [T, hidden]."""
        first, *others = residual.x.unbind(1)
        pairs = zip(self.merge, others, strict=True)
        streams = [first, *(_as_large(project(stream), first) for project, stream in pairs)]
        return residual._replace(x=torch.stack(streams).mean(0))


def _as_large(x: Tensor, pattern: Tensor) -> Tensor:
    """x [T, hidden] with the root mean square of the rows of `pattern`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    square = x.to(wide).square().mean(-1, keepdim=True).clamp(min=LEAST_SQUARE)
    wanted = pattern.to(wide).square().mean(-1, keepdim=True)
    return (x * (wanted / square).sqrt()).to(x.dtype)
