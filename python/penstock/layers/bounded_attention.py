"""Attention with biases by distance, and bounds in the place of norms (Inkling 2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from penstock_kernels import linear
from torch import Tensor

from penstock.config import AttentionSpec, Gate, NormSpec, ResidualSpec
from penstock.layers.added_convolution import KvConvolution
from penstock.layers.attention import Attention, ByQuery, StepContext, attend
from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear
from penstock.layers.norm import HeadNorm, normed_heads
from penstock.layers.relative_attention import log_factors
from penstock.layers.token_convolution import TapSizes, TokenConvolution
from penstock.parallel import Share
from penstock.weights import Target

LEAST_LENGTH = 1e-6  # what is added to lengths that divide


class ScaledBound(Layer):
    """Learned factors of each head's vector, and a bound of its length after them."""

    def __init__(self, build: Build, shape: tuple[int, int], bound: float, share: Share) -> None:
        """`shape`: heads on this rank, and elements of a vector."""
        wide = torch.promote_types(build.dtype, torch.float32)
        self.scale = build.empty(*shape, dtype=wide)
        self.bound, self.share = bound, share

    def targets(self) -> dict[str, Target]:
        """Returns the target of the factors of this rank's heads."""
        return {"scale": Target.share(self.scale, 0, self.share.index, self.share.count)}

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, heads, size] -> the same shape, in float32 or wider."""
        return bounded(x * self.scale, self.bound)


def bounded(x: Tensor, bound: float) -> Tensor:
    """Scales vectors [..., size] that are longer than `bound` to this length. Returns float32 or
    wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    factor: Tensor = (bound / (length + LEAST_LENGTH)).clamp(max=1)
    return wide * factor


class Projected(NamedTuple):
    """What attention reads, side by side over the heads of this rank: [T, ...] each."""

    queries: Tensor
    factors: Tensor
    """Of profiles."""
    gates: Tensor
    kv: Tensor
    """Convolved keys, then convolved values."""


class BoundedAttention(Attention, ABC):
    """As `RelativeAttention`, without norms of queries and keys: see `BoundsSpec`. The sigmoids of
    gates multiply the output."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        self.relative = spec.relative
        assert self.relative is not None and self.relative.bounds is not None
        assert spec.gate is Gate.OWN
        super().__init__(build, residual, spec, index)
        rank, bounds, own = self.relative.rank, self.relative.bounds, build.group.own
        self.bound, self.kv_size = bounds.heads, self.kv_heads * self.head_dim
        self.query_bound = ScaledBound(build, (self.heads, self.head_dim), bounds.heads, own)
        self.factor_bound = ScaledBound(build, (self.heads, rank), bounds.factors, own)
        norm = NormSpec(residual.norm.eps, learned=False)
        self.value_norm = HeadNorm(build, self.head_dim, norm)
        self.profiles = build.empty(rank, self.relative.extent)
        self.sink_weight = build.empty(self.heads, residual.hidden)
        self.scales: Tensor | None = None
        scale = self.relative.scale
        if scale is not None and build.positions > scale.floor:
            self.scales = log_factors(scale, build)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the profiles, and of the rows of sinks of this rank's heads."""
        sinks = Target.share(self.sink_weight, 0, self.group.rank, self.group.size)
        return {**super().targets(), "profiles": Target.whole(self.profiles), "sink_weight": sinks}

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """Not used: sinks follow from the input, which `product_of` has."""
        raise NotImplementedError

    def product_of(self, inputs: Sequence[Tensor], context: StepContext) -> Tensor:
        """Normalised inputs [T, hidden], that of queries first -> the output [T, hidden]; a partial
        sum with several ranks."""
        return self.out.product(self._attend(self.project(inputs, context), inputs[0], context))

    @abstractmethod
    def project(self, inputs: Sequence[Tensor], context: StepContext) -> Projected:
        """Projects the inputs, and convolves keys and values."""

    def _attend(self, projected: Projected, x: Tensor, context: StepContext) -> Tensor:
        """x [T, hidden] yields the sinks -> the input of `out` [T, ...]."""
        tokens = len(x)
        q = self.query_bound(projected.queries.view(tokens, self.heads, -1))
        factors = self.factor_bound(projected.factors.view(tokens, self.heads, -1))
        if self.scales is not None:
            scales = self.scales.index_select(0, context.positions)[:, None, None]
            q, factors = q * scales, factors * scales
        k, v = projected.kv.view(tokens, -1, self.head_dim).split(self.kv_heads, 1)
        normed_heads(v, v[:, :0], self.value_norm, self.value_norm)
        sinks = linear(x, self.sink_weight, None).to(q.dtype)
        by_query = ByQuery(factors.to(x.dtype) @ self.profiles, sinks)
        k = bounded(k, self.bound).to(x.dtype)
        mixed = attend(q.to(x.dtype), k, v, self, context, by_query).view(tokens, -1)
        return (mixed * projected.gates.to(q.dtype).sigmoid()).to(x.dtype)

    def _sizes(self, *kv: int) -> list[int]:
        """Outputs of `qkv` on this rank, with keys and values or without."""
        assert self.relative is not None
        queries = self.heads * self.head_dim
        return [queries, *kv, self.heads * self.relative.rank, queries]


class OneInputAttention(BoundedAttention):
    """BoundedAttention whose queries, keys and values have the same input."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.relative is not None
        below, width = build.below("convolution"), spec.relative.width
        self.convolution = KvConvolution(below, index - 1, self.kv_size, width, self.kv_share)
        self.convolution.factor = (width + 1) ** -0.5

    def project(self, inputs: Sequence[Tensor], context: StepContext) -> Projected:
        """As `BoundedAttention.project`, of one matrix."""
        sizes = self._sizes(2 * self.kv_size)
        queries, kv, factors, gates = self.qkv.product(inputs[0]).split(sizes, 1)
        return Projected(queries, factors, gates, self.convolution(kv, context))


class OwnInputsAttention(BoundedAttention):
    """BoundedAttention whose queries, keys and values each have an input of their own, and the
    convolution weights that depend on the token."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.relative is not None
        kv, share = spec.kv_heads * spec.head_dim, self.kv_share
        below = build.below("keys"), build.below("values")
        self.keys = ColumnLinear(below[0], {"k": kv}, residual, False, shares={"k": share})
        self.values = ColumnLinear(below[1], {"v": kv}, residual, False, shares={"v": share})
        sizes = TapSizes(self.kv_heads, self.head_dim, residual.hidden, spec.relative.width)
        self.convolution = TokenConvolution(build, index - 1, sizes, share)

    def project(self, inputs: Sequence[Tensor], context: StepContext) -> Projected:
        """As `BoundedAttention.project`, of a matrix for each input."""
        x, of_keys, of_values = inputs
        queries, factors, gates = self.qkv.product(x).split(self._sizes(), 1)
        kv = torch.cat((self.keys.product(of_keys), self.values.product(of_values)), 1)
        kv = self.convolution(kv, of_keys, of_values, context)
        return Projected(queries, factors, gates, kv)
