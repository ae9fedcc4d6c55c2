"""Latent attention to the tokens that an indexer chooses (DeepSeek sparse attention).

Every rank chooses for itself: the indexer is replicated, and its inputs are equal on all ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from penstock_kernels import index_tokens, index_write, linear
from torch import Tensor

from penstock.config import AttentionSpec, LatentSpec, ResidualSpec
from penstock.layers.attention import Choice, StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.gated_norm import gated
from penstock.layers.latent_attention import LatentAttention
from penstock.layers.linear import ColumnLinear
from penstock.layers.listed_rows import Listed, attend_listed
from penstock.layers.norm import LayerNorm, Norm
from penstock.parallel import Share
from penstock.weights import Target


class IndexMatrix(ColumnLinear):
    """A matrix of an indexer, whole on every rank."""

    def __init__(self, build: Build, outputs: int, residual: ResidualSpec) -> None:
        super().__init__(build, {"all": outputs}, residual, False, shares={"all": Share()})


class HeadWeights(Layer):
    """The weights of the heads' scores; in float32, as in checkpoints' own code."""

    def __init__(self, build: Build, heads: int, hidden: int) -> None:
        wide = torch.promote_types(build.dtype, torch.float32)
        self.weight = build.empty(heads, hidden, dtype=wide)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the matrix, replicated on every rank."""
        return {"weight": Target.whole(self.weight)}

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, heads] float32."""
        return linear(x.to(self.weight.dtype), self.weight, None)


class Indexer(Layer):
    """Chooses the tokens that each query of a layer attends to, and stores its keys behind the
    latents.

    The factors of scores that all tokens share are left out: they do not change the choice.
    """

    def __init__(self, build: Build, residual: ResidualSpec, spec: LatentSpec) -> None:
        indexer = spec.indexer
        assert indexer is not None
        self.heads, self.head_dim, self.top_k = indexer.heads, indexer.head_dim, indexer.top_k
        self.pairs = indexer.interleaved, indexer.at_end
        stream = replace(residual, hidden=spec.query_rank)
        queries = indexer.heads * indexer.head_dim
        self.queries = IndexMatrix(build.below("queries"), queries, stream)
        self.key = IndexMatrix(build.below("key"), indexer.head_dim, residual)
        self.key_norm = LayerNorm(build, indexer.head_dim, indexer.norm)
        self.head_weights = HeadWeights(build, indexer.heads, residual.hidden)

    def choose(
        self, x: Tensor, latent: Tensor, cos_sin: Tensor, index: int, context: StepContext
    ) -> Choice:
        """Returns the choice of layer `index`, for its input x [T, hidden] and its queries' latent
        [T, rank], both normalised."""
        places, cache = context.places[index], context.kv_cache(index).data
        q = self.queries.product(latent).view(len(x), self.heads, self.head_dim)
        norm = self.key_norm
        assert norm.bias is not None
        turn = cos_sin, context.positions, places.slot_mapping, cache
        keys = self.key.product(x)
        index_write(q, keys, norm.weight, norm.bias, norm.eps, *turn, *self.pairs)
        weights = self.head_weights(x)
        rows = torch.empty((len(x), self.top_k), dtype=torch.int32, device=x.device)
        counts = torch.zeros(len(x), dtype=torch.int32, device=x.device)  # for padding rows
        if context.decodes is not None:
            decodes, first = context.decodes, slice(context.decodes.count)
            given = q[first], weights[first], cache, places.tables, decodes.slots
            index_tokens(*given, None, decodes.kv_len, rows[first], counts[first])
        if context.chunks is not None:
            chunks = context.chunks
            starts, lengths = chunks.query_start, chunks.kv_len
            index_tokens(
                q, weights, cache, places.tables, chunks.slots, starts, lengths, rows, counts
            )
        slots = torch.arange(len(x), dtype=torch.int32, device=x.device)
        return Choice(slots, rows, counts)


class IndexedLatentAttention(LatentAttention):
    """Latent attention to the tokens of a choice: its own, or that of an earlier layer."""

    chooser: ClassVar[type[Indexer]] = Indexer

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.latent is not None and spec.latent.indexer is not None
        self.indexer: Indexer | None = None
        if not spec.latent.indexer.shared:
            self.indexer = self.chooser(build.below("indexer"), residual, spec.latent)
        # No sequence grows longer than what a query attends to.
        self.dense = build.positions <= spec.latent.indexer.top_k

    def __call__(
        self, norm: Norm, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `SelfAttention.__call__`: the indexer reads the normalised stream too."""
        x, total = norm(residual)
        mixed = self.mix_inputs(x, self.qkv.product(x), context)
        if rows is not None:
            mixed, total = mixed.index_select(0, rows), total.index_select(0, rows)
        return self.out(mixed, total)

    def product(self, x: Tensor, context: StepContext, rows: Tensor | None = None) -> Tensor:
        """As `SelfAttention.product`."""
        mixed = self.mix_inputs(x, self.qkv.product(x), context)
        return self.out.product(mixed if rows is None else mixed.index_select(0, rows))

    def mix_inputs(self, x: Tensor, qkv: Tensor, context: StepContext) -> Tensor:
        """Attends: the normalised input x [T, hidden], and `qkv` (queries' latent | latent, key to
        rotate) [T, ...], its projection -> [T, heads * value]."""
        assert self.query_norm is not None
        latent, _ = self.query_norm(Residual(qkv[:, : -self.row], None, False))
        if self.indexer is not None and not self.dense:
            chosen = self.indexer.choose(x, latent, self.cos_sin, self.index, context)
            context.chosen.choice = chosen
        return self.mix_queries(qkv[:, : -self.row], latent, qkv[:, -self.row :], context)

    def mix_queries(self, raw: Tensor, latent: Tensor, kv: Tensor, context: StepContext) -> Tensor:
        """Attends: the queries' latent [T, rank] before and after its norm, kv [T, rank + R] -> [T,
        heads * value]."""
        assert self.query_up is not None
        return self.mix_heads(self.query_up.product(latent), kv, context)

    def attend_rows(self, q: Tensor, context: StepContext, out: Tensor) -> None:
        """As `LatentAttention.attend_rows`: each query is a decode of its own, whose table lists
        blocks of one token, or of one pool."""
        if self.dense:
            super().attend_rows(q, context, out)
            return
        choice, cache = context.chosen.choice, context.kv_cache(self.index).data
        assert choice is not None  # the first layer has an indexer
        tokens = cache.view(-1, 1, 1, choice.block_tokens, cache.shape[-1])
        listed = Listed(tokens, choice.rows, choice.slots, choice.counts)
        attend_listed(q, listed, self.scale, out, self.sinks)


class GatedIndexedAttention(IndexedLatentAttention):
    """As IndexedLatentAttention; the sigmoid of a projection of the input multiplies the output."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.latent is not None
        self.gates = self.heads * spec.latent.value

    def mix_inputs(self, x: Tensor, qkv: Tensor, context: StepContext) -> Tensor:
        """As `IndexedLatentAttention.mix_inputs`, of [gates | queries' latent | latent, key]."""
        gate, rest = qkv.tensor_split([self.gates], 1)
        return gated(super().mix_inputs(x, rest, context), gate)


class HeadGatedIndexedAttention(IndexedLatentAttention):
    """As IndexedLatentAttention, whose heads are multiplied by the sigmoid of one number each."""

    def mix_inputs(self, x: Tensor, qkv: Tensor, context: StepContext) -> Tensor:
        """As `IndexedLatentAttention.mix_inputs`, of [numbers | queries' latent | latent, key]."""
        numbers, rest = qkv.tensor_split([self.heads], 1)
        heads = super().mix_inputs(x, rest, context).view(len(qkv), self.heads, -1)
        return gated(heads, numbers[:, :, None]).flatten(1)
