"""The layer of A.X K2: gates of norms and of the attention's output."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from penstock.config import AttentionSpec, MoeSpec, ResidualSpec, Specification
from penstock.layers import Build, ColumnLinear, GatedNorm, Layer, Residual, mlp_of, norm_of
from penstock.layers.attention import StepContext
from penstock.layers.gated_norm import gated
from penstock.layers.indexed_attention import IndexedLatentAttention


class QueryGatedIndexedAttention(IndexedLatentAttention):
    """Sparse latent attention. One matrix yields each head's query and gate; it reads the queries'
    latent after and before its norm."""

    def query_projection(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec
    ) -> ColumnLinear:
        """As `LatentAttention.query_projection`, from twice the latent."""
        assert spec.latent is not None
        stream = replace(residual, hidden=2 * spec.latent.query_rank)
        return ColumnLinear(
            build, {"q": spec.heads * (sum(self.sizes) + spec.latent.value)}, stream, False
        )

    def mix_queries(self, raw: Tensor, latent: Tensor, kv: Tensor, context: StepContext) -> Tensor:
        """As `IndexedLatentAttention.mix_queries`."""
        assert self.query_up is not None
        both = self.query_up.product(torch.cat((latent, raw), 1))
        q, gate = both.view(len(raw), self.heads, -1).tensor_split([sum(self.sizes)], 2)
        return gated(self.mix_heads(q.flatten(1), kv, context), gate.flatten(1))


class Axk2Block(Layer):
    """A decoder layer with a gated norm before attention, and another before experts. No matrix
    takes its norm into its own launch."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.kind = spec.layers[index]
        stream, below = spec.residual, build.below(f"blocks.{index}")
        assert isinstance(self.kind.attention, AttentionSpec)
        self.partial, path = build.group.size > 1, below.below("attention")
        self.attention_norm = GatedNorm(build, stream)
        self.attention = QueryGatedIndexedAttention(path, stream, self.kind.attention, index)
        has_experts = isinstance(self.kind.mlp, MoeSpec)
        own = GatedNorm(build, stream) if has_experts else None
        self.mlp_norm = own or norm_of(build, stream.hidden, stream.norm)
        self.mlp = mlp_of(below.below("mlp"), stream, self.kind.mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        residual = self.attention(self.attention_norm, residual, context, rows)
        x, total = self.mlp_norm(residual)
        return Residual(self.mlp.product(x), total, self.partial)
