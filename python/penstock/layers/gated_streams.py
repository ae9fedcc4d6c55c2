"""Several residual streams, each with a norm of its own, that layers read through gates of low rank
(Qwen4-Exp, a kind of hyper-connections, arXiv:2409.19606).

Every rank has all streams [T, N, hidden]. The matrices are floats in any weight format.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.config import GatedStreamsSpec, ResidualSpec
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.per_layer import WholeLinear
from penstock.layers.streams import Pending, begun
from penstock.weights import Target


class StreamNorm(Layer):
    """RMSNorm of each stream, with a scale 1 + w of its own."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        assert isinstance(residual.streams, GatedStreamsSpec)
        wide = torch.promote_types(build.dtype, torch.float32)
        self.weight = build.empty(residual.streams.count * residual.hidden, dtype=wide)
        self.eps = residual.norm.eps

    def targets(self) -> dict[str, Target]:
        """Returns the target of all streams' scales, one behind the other."""
        return {"weight": Target.whole(self.weight)}

    def finish(self) -> None:
        """Replaces w by 1 + w."""
        self.weight += 1

    def __call__(self, streams: Tensor) -> Tensor:
        """[T, N, hidden] -> [T, N, hidden]."""
        wide = streams.to(self.weight.dtype)
        factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * factor * self.weight.view(streams.shape[1:])).to(streams.dtype)


class StreamMix(Layer):
    """The mean of the normalised streams, times a gate of each element."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        assert isinstance(residual.streams, GatedStreamsSpec)
        self.count = residual.streams.count
        width, rank = self.count * residual.hidden, residual.streams.rank
        self.norm = StreamNorm(build, residual)
        self.narrow, self.widen = WholeLinear(build, rank, width), WholeLinear(build, width, rank)

    def __call__(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """streams [T, N, hidden] -> (their mix [T, hidden], normalised streams [T, N * hidden])."""
        normed = self.norm(streams)
        flat = normed.flatten(1)
        gates = self.widen(F.silu(self.narrow(flat) / self.count)).view(streams.shape)
        wide = torch.promote_types(streams.dtype, torch.float32)
        mixed = (gates.to(wide).sigmoid_() * normed).mean(1)
        return mixed.to(streams.dtype), flat


class GatedConnection(Layer):
    """What a layer reads of the streams, and with which weights its output is added."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        self.mix = StreamMix(build, residual)
        self.count = self.mix.count
        self.inject = WholeLinear(build, self.count, self.count * residual.hidden)

    def __call__(self, streams: Tensor) -> tuple[Tensor, Pending]:
        """streams [T, N, hidden] -> (the layer's input [T, hidden], the streams for its output)."""
        x, normed = self.mix(streams)
        wide = torch.promote_types(x.dtype, torch.float32)
        logits = self.inject(normed).to(wide) / self.count
        return x, Pending(streams, 2 * logits.sigmoid())


class GatedStreams(Layer):
    """How the streams begin, as copies of the embedding, and end, in their mix. No norm follows."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        self.mix, self.group = StreamMix(build, residual), build.group

    def begin(self, residual: Residual) -> Residual:
        """[T, hidden] -> streams [T, N, hidden]."""
        return begun(residual, self.mix.count, self.group)

    def end(self, residual: Residual) -> Residual:
        """Streams [T, N, hidden] -> [T, hidden]."""
        return residual._replace(x=self.mix(residual.x)[0])
