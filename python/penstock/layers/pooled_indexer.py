"""Latent attention to the pools of tokens that an indexer chooses (GLM-5-next).

A pool is a few tokens in a row, which have one index key. A query attends to all tokens of the
chosen pools that are before it, and to those of its own pool, which is not complete yet.

The cached row of a token ends in (gate | key); see `index_pool`. So the rows of a pool, as one row,
end in the pool's key, and `index_tokens` chooses pools in a cache with fewer, wider rows.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from penstock_kernels import index_pool, index_tokens, linear
from torch import Tensor

from penstock.config import LatentSpec, ResidualSpec
from penstock.layers.attention import Choice, StepContext
from penstock.layers.base import Build
from penstock.layers.indexed_attention import IndexedLatentAttention, Indexer
from penstock.layers.step_rows import step_tokens
from penstock.weights import Target


class PooledIndexer(Indexer):
    """Chooses the pools that each query of a layer attends to. No index query or key rotates."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: LatentSpec) -> None:
        super().__init__(build, residual, spec)
        assert spec.indexer is not None
        self.pool = spec.indexer.pool
        self.gate = build.empty(self.head_dim, residual.hidden)
        self.offsets = build.empty(self.pool, self.head_dim)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of what weighs the tokens of a pool, replicated on every rank."""
        return {"gate": Target.whole(self.gate), "offsets": Target.whole(self.offsets)}

    def choose(
        self, x: Tensor, latent: Tensor, cos_sin: Tensor, index: int, context: StepContext
    ) -> Choice:
        """As `Indexer.choose`."""
        places, cache = context.places[index], context.kv_cache(index).data
        norm, slots = self.key_norm, places.slot_mapping
        assert norm.bias is not None
        tokens = self.key.product(x), linear(x, self.gate, None)
        index_pool(*tokens, norm.weight, norm.bias, norm.eps, self.offsets, slots, cache)
        q = self.queries.product(latent).view(len(x), self.heads, self.head_dim)
        sequences, seen = step_tokens(context)
        rows = torch.empty((len(x), self.top_k // self.pool), dtype=torch.int32, device=x.device)
        # Zeros, because they are places below: while kernels are only compiled, nothing sets them.
        counts = torch.zeros(len(x), dtype=torch.int32, device=x.device)
        pools = cache.unflatten(3, (-1, self.pool)).flatten(4)
        given = q, self.head_weights(x), pools, places.tables, sequences, None, seen // self.pool
        index_tokens(*given, rows, counts)
        # The query's own pool follows the chosen ones, whose number is their last place.
        own = (slots // self.pool)[:, None]
        rows = F.pad(rows, (0, 1)).scatter_(1, counts[:, None].long(), own)
        order = torch.arange(len(x), dtype=torch.int32, device=x.device)
        return Choice(order, rows, counts * self.pool + seen % self.pool, self.pool)


class PooledLatentAttention(IndexedLatentAttention):
    """Latent attention to the pools of a choice: its own, or that of an earlier layer."""

    chooser: ClassVar[type[Indexer]] = PooledIndexer
