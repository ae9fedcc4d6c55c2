"""Grouped-query attention to the blocks of tokens that an indexer chooses (Qwen4-Exp's QSA,
MiniMax-M3's MSA).

A token's row in the cache has its value, its key and an index key, for each KV head. A query reads
those of its choice as sequences of their own do in a decode, so `latent_attention` serves it: its
first columns of a row are the value, and a query is zeros there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.config import AttentionSpec, ResidualSpec
from penstock.layers.attention import NormedAttention, QueryGatedAttention, StepContext
from penstock.layers.base import Build, Residual
from penstock.layers.block_indexers import BlockChoice, block_indexer_of
from penstock.layers.listed_rows import Listed, attend_listed
from penstock.layers.norm import Norm, normed_heads
from penstock.layers.rope import turned
from penstock.layers.step_rows import step_tokens, write_rows


class BlockIndexedAttention(NormedAttention):
    """Attention to a choice of blocks. Prompts attend as decodes do, query by query."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        self.indexer = block_indexer_of(build.below("indexer"), residual, spec)

    def __call__(
        self, norm: Norm, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `SelfAttention.__call__`: the indexer reads the normalised stream too."""
        x, total = norm(residual)
        mixed = self.mix_inputs(x, context)
        if rows is not None:
            mixed, total = mixed.index_select(0, rows), total.index_select(0, rows)
        return self.out(mixed, total)

    def product(self, x: Tensor, context: StepContext, rows: Tensor | None = None) -> Tensor:
        """As `SelfAttention.product`."""
        mixed = self.mix_inputs(x, context)
        return self.out.product(mixed if rows is None else mixed.index_select(0, rows))

    def mix_inputs(self, x: Tensor, context: StepContext) -> Tensor:
        """Attends: the normalised input x [T, hidden] -> [T, heads * head_dim]."""
        heads = self.qkv.product(x).view(len(x), -1, self.head_dim)
        return self.mix_heads(heads, x, context).flatten(1)

    def mix_heads(self, heads: Tensor, x: Tensor, context: StepContext) -> Tensor:
        """Attends: queries, keys and values, `heads` [T, ..., head_dim], for the normalised input x
        [T, hidden] -> [T, heads, head_dim]."""
        q, k, v = torch.split(heads, self.split, dim=1)
        q, k = normed_heads(q, k, self.q_norm, self.k_norm)
        angles = self.cos_sin.index_select(0, context.positions)
        queries, keys = self.indexer.project(x, context.positions)
        self._write(turned(k, angles), v, keys, context)
        places, cache = context.places[self.index], context.kv_cache(self.index).data
        choice = self.indexer.choose(queries, cache, places.tables, step_tokens(context))
        return self._attend(turned(q, angles), choice, cache)

    def _write(self, k: Tensor, v: Tensor, keys: Tensor, context: StepContext) -> None:
        """Stores rows of k and v [T, heads, head_dim] and index keys [T, size]."""
        cache = context.kv_cache(self.index).data
        slots = context.places[self.index].slot_mapping
        _, _, heads, block_tokens, width = cache.shape
        rows = torch.cat((v, k, keys[:, None].expand(-1, heads, -1)), 2)
        first = slots // block_tokens * (heads * block_tokens) + slots % block_tokens
        places = first[:, None] + torch.arange(heads, device=slots.device) * block_tokens
        live = (slots >= 0)[:, None].expand_as(places)
        write_rows(cache.view(-1, width), places.flatten(), rows.flatten(0, 1), live.flatten())
        self.indexer.complete(cache, torch.where(slots >= 0, first, -1), context)

    def _attend(self, q: Tensor, choice: BlockChoice, cache: Tensor) -> Tensor:
        """q [T, heads, head_dim] to the chosen blocks -> [T, heads, head_dim]."""
        shared = self.heads // self.kv_heads
        rows = cache.view(-1, 1, 1, choice.page_tokens, cache.shape[4])
        tables = choice.pages.flatten(0, 1)
        counts = choice.counts[:, None].expand(-1, self.kv_heads).flatten()
        query = torch.cat((torch.zeros_like(q), q), 2).view(-1, shared, 2 * self.head_dim)
        out = q.new_empty((len(query), shared, self.head_dim))
        slots = torch.arange(len(query), dtype=torch.int32, device=q.device)
        attend_listed(query, Listed(rows, tables, slots, counts), self.scale, out)
        return out.view(q.shape)


class GatedBlockIndexedAttention(BlockIndexedAttention, QueryGatedAttention):
    """As BlockIndexedAttention; the sigmoid of a gate, stored behind each head's query, multiplies
    the output."""

    def mix_inputs(self, x: Tensor, context: StepContext) -> Tensor:
        """As `BlockIndexedAttention.mix_inputs`, of q, k, v and gates side by side."""
        heads = self.qkv.product(x).view(len(x), -1, self.head_dim)
        rest, gate = heads.tensor_split([sum(self.split)], dim=1)
        return self.mix_heads(rest, x, context).mul_(gate.sigmoid()).flatten(1)
