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
        count, self.active = spec.streams, spec.active
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

    def first(self, corrected: Tensor) -> Tensor:
        """The active stream as the layer's embedding reads it: [T, streams, hidden] -> [T,
        hidden]."""
        stream = corrected[:, self.active]
        return stream * self.scale if self.scaled else stream

    def _modalities(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, streams]; the tanh is of float32, as transformers has it."""
        normed, _ = self.router_norm(Residual(x, None, False))
        return torch.tanh(self.router(normed * self.router_scale).float()).to(x.dtype)


class Laurel(Layer):
    """x + norm(right(left(x))), of low rank."""

    def __init__(self, build: Build, residual: ResidualSpec, rank: int) -> None:
        self.left = WholeLinear(build, rank, residual.hidden)
        self.right = WholeLinear(build, residual.hidden, rank)
        self.norm = norm_of(build, residual.hidden, residual.norm)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return x + self.norm(Residual(self.right(self.left(x)), None, False))[0]


class Expand(Layer):
    """Embeddings to streams: the first one is the embedding, the others are projections of it."""

    def __init__(self, build: Build, hidden: int, streams: int) -> None:
        self.project = [WholeLinear(build, hidden, hidden) for _ in range(1, streams)]

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, streams, hidden]."""
        return torch.stack([x, *(_as_large(project(x), x) for project in self.project)], 1)


class Merge(Layer):
    """The last norm, of the mean of the first stream and of projections of the others."""

    def __init__(self, build: Build, residual: ResidualSpec, streams: int) -> None:
        hidden = residual.hidden
        self.project = [WholeLinear(build, hidden, hidden) for _ in range(1, streams)]
        self.norm = norm_of(build, hidden, residual.norm)

    def __call__(self, residual: Residual) -> tuple[Tensor, Tensor]:
        """As a norm's, of streams [T, streams, hidden]."""
        first, *others = residual.x.unbind(1)
        pairs = zip(self.project, others, strict=True)
        streams = [first, *(_as_large(project(stream), first) for project, stream in pairs)]
        return self.norm(Residual(torch.stack(streams).mean(0), None, False))


def _as_large(x: Tensor, pattern: Tensor) -> Tensor:
    """x [T, hidden] with the root mean square of the rows of `pattern`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    square = x.to(wide).square().mean(-1, keepdim=True).clamp(min=LEAST_SQUARE)
    wanted = pattern.to(wide).square().mean(-1, keepdim=True)
    return (x * (wanted / square).sqrt()).to(x.dtype)
