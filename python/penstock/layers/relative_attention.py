"""Attention with biases by the query and the distance of the key, in place of RoPE (Inkling)."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.config import AttentionSpec, LogScale, ResidualSpec
from penstock.layers.added_convolution import KvConvolution
from penstock.layers.attention import ByQuery, NormedAttention, StepContext, attend
from penstock.layers.base import Build
from penstock.layers.norm import normed_heads
from penstock.weights import Target


class RelativeAttention(NormedAttention):
    """Attention whose scores have biases: each head of a token has a few numbers, which are factors
    of learned profiles over the distance. Keys and values go through a short convolution, whose
    inputs are in the states of the layer before."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        relative = spec.relative
        assert relative is not None and spec.rope is None and spec.gate is None
        super().__init__(build, residual, spec, index)
        kv = self.kv_heads * self.head_dim
        self.parts = [self.heads * self.head_dim, 2 * kv, self.heads * relative.rank]
        below = build.below("convolution")
        self.convolution = KvConvolution(below, index - 1, kv, relative.width, self.kv_share)
        self.profiles = build.empty(relative.rank, relative.extent)
        self.factors: Tensor | None = None
        if relative.scale is not None and build.positions > relative.scale.floor:
            self.factors = log_factors(relative.scale, build)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the profiles, which all heads share."""
        return {**super().targets(), "profiles": Target.whole(self.profiles)}

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`, of q, k, v and the factors of profiles side by side."""
        tokens = len(qkv)
        queries, kv, relative = qkv.split(self.parts, 1)
        kv = self.convolution(kv, context).view(tokens, -1, self.head_dim)
        k, v = kv.split(self.kv_heads, 1)
        q, k = normed_heads(queries.view(tokens, -1, self.head_dim), k, self.q_norm, self.k_norm)
        relative = relative.view(tokens, self.heads, -1)
        if self.factors is not None:
            factors = self.factors.index_select(0, context.positions)[:, None, None]
            q, relative = ((x * factors).to(x.dtype) for x in (q, relative))
        by_query = ByQuery(relative @ self.profiles)
        return attend(q, k, v, self, context, by_query).view(tokens, -1)


def log_factors(scale: LogScale, build: Build) -> Tensor:
    """Returns the factors [positions] of queries by position, in float32 or wider."""
    wide = torch.promote_types(build.dtype, torch.float32)
    seen = torch.arange(1, build.positions + 1, device=build.device).to(wide)
    return 1 + scale.alpha * torch.log((seen / scale.floor).clamp(min=1))
