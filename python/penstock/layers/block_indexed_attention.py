"""Grouped-query attention to the blocks of tokens that an indexer chooses (Qwen4-Exp, QSA).

A token's row in the cache has its value, its key and an index key, for each KV head. A query reads
those of its choice as sequences of their own do in a decode, so `latent_attention` serves it: its
first columns of a row are the value, and a query is zeros there.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from penstock_kernels import index_tokens, latent_attention
from torch import Tensor

from penstock.config import AttentionSpec, BlockIndexerSpec, ResidualSpec
from penstock.layers.attention import Choice, QueryGatedAttention, StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.indexed_attention import ROWS, IndexMatrix
from penstock.layers.norm import HeadNorm, Norm, normed_heads
from penstock.layers.step_rows import StepTokens, step_tokens


class BlockIndexer(Layer):
    """Chooses the blocks that each query of a layer attends to. Every rank chooses for itself, by
    the same numbers."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, chosen: BlockIndexerSpec
    ) -> None:
        self.spec, self.size = chosen, chosen.head_dim
        outputs = (chosen.heads + 1) * chosen.head_dim
        self.matrix = IndexMatrix(build.below("matrix"), outputs, residual)
        self.query_norm = HeadNorm(build, chosen.head_dim, chosen.norm)
        self.key_norm = HeadNorm(build, chosen.head_dim, chosen.norm)
        assert spec.rope is not None
        rotated = spec.rope.dims(spec.head_dim)
        self.cos_sin = build.rope_table(replace(spec.rope, fraction=1.0), rotated)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, hidden] -> index queries [T, heads, size], index keys [T, size] as the cache has
        them before their block is whole: not normalised."""
        heads = self.matrix.product(x).view(len(x), -1, self.size)
        queries, keys = heads[:, :-1], heads[:, -1]
        normed_heads(queries, queries[:, :0], self.query_norm, self.query_norm)
        return turned(queries, self.cos_sin.index_select(0, positions)), keys

    def block_keys(self, keys: Tensor, positions: Tensor) -> Tensor:
        """The keys of whole blocks, rotated by the position of their first token: the means of
        their tokens' index keys [T, block, size], for last tokens at `positions` [T] -> [T,
        size]."""
        wide = torch.promote_types(keys.dtype, torch.float32)
        means = keys.to(wide).mean(1).to(keys.dtype)[:, None]
        normed_heads(means, means[:, :0], self.key_norm, self.key_norm)
        first = (positions - (self.spec.block - 1)).clamp_min(0)
        return turned(means, self.cos_sin.index_select(0, first))[:, 0]

    def choose(self, queries: Tensor, cache: Tensor, tables: Tensor, seen: StepTokens) -> Choice:
        """Lists blocks of the first KV head's rows: the choice in the order of the tokens, then
        what follows the last whole block. `counts` are tokens.

        cache [blocks, 1, heads, block_tokens, W]; tables [N, B] int32.
        """
        size, (count, _, heads, block_tokens, width) = self.spec.block, cache.shape
        if block_tokens % size:
            raise ValueError(f"blocks of {size} tokens do not fit cache blocks of {block_tokens}")
        within = block_tokens // size
        # The last token of a block has the block's key, at the end of its row.
        keys = cache.view(count * heads, 1, 1, within, size * width)
        whole = seen.seen // size
        wide = torch.promote_types(queries.dtype, torch.float32)
        weights = torch.ones(queries.shape[:2], dtype=wide, device=queries.device)
        rows = whole.new_empty((len(queries), self.spec.top_k))
        counts = torch.zeros_like(whole)
        where = tables * heads, seen.slots, None, whole
        index_tokens(queries, weights, keys, *where, rows, counts)
        column = (whole // within).clamp_max(tables.shape[1] - 1).long()
        last = tables[seen.slots.long(), column] * (heads * within) + whole % within
        blocks = torch.cat((rows, rows[:, :1]), 1).scatter_(
            1, counts[:, None].long(), last[:, None]
        )
        return Choice(seen.slots, blocks, (counts - whole) * size + seen.seen)


class BlockIndexedAttention(QueryGatedAttention):
    """Gated attention to a choice of blocks. Prompts attend as decodes do, query by query."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.block_indexer is not None
        self.indexer = BlockIndexer(build.below("indexer"), residual, spec, spec.block_indexer)

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
        q, k, v, gate = torch.split(heads, [*self.split, self.heads], dim=1)
        q, k = normed_heads(q, k, self.q_norm, self.k_norm)
        angles = self.cos_sin.index_select(0, context.positions)
        queries, keys = self.indexer.project(x, context.positions)
        self._write(turned(k, angles), v, keys, context)
        places, cache = context.places[self.index], context.kv_cache(self.index).data
        seen = step_tokens(context)
        choice = self.indexer.choose(queries, cache, places.tables, seen)
        mixed = self._attend(turned(q, angles), choice, cache)
        return mixed.mul_(gate.sigmoid()).flatten(1)

    def _write(self, k: Tensor, v: Tensor, keys: Tensor, context: StepContext) -> None:
        """Stores rows of k and v [T, heads, head_dim] and index keys [T, size], then the keys of
        blocks whose last token is there."""
        cache, size = context.kv_cache(self.index).data, self.indexer.spec.block
        block_tokens, width = cache.shape[3:]
        slots = context.places[self.index].slot_mapping
        # Padding repeats a row that is there, or, if none is, leaves the first one as it was.
        live = slots >= 0
        source = torch.arange(len(slots), device=slots.device).where(live, live.int().argmax())
        place = slots.index_select(0, source).clamp_min(0).long()
        block, token = place // block_tokens, place % block_tokens
        rows = torch.cat((v, k, keys[:, None].expand(-1, self.kv_heads, -1)), 2)
        stored = cache[:, 0]  # [blocks, heads, block_tokens, W]
        before, exists = stored[block, :, token], live.index_select(0, source)
        stored[block, :, token] = rows.index_select(0, source).where(exists[:, None, None], before)
        heads_rows = cache.view(-1, width)
        last = block * (self.kv_heads * block_tokens) + token  # of the first head
        members = last[:, None] + torch.arange(1 - size, 1, device=last.device)
        found = heads_rows[members.clamp_min(0), -self.indexer.size :]
        ends = context.positions % size == size - 1
        key = self.indexer.block_keys(found, context.positions).where(ends[:, None], found[:, -1])
        key = key.index_select(0, source).where(exists[:, None], found[:, -1])
        heads_rows[last, -self.indexer.size :] = key

    def _attend(self, q: Tensor, choice: Choice, cache: Tensor) -> Tensor:
        """q [T, heads, head_dim] to the chosen blocks -> [T, heads, head_dim]."""
        block_tokens, width = cache.shape[3:]
        size, shared = self.indexer.spec.block, self.heads // self.kv_heads
        rows = cache.view(-1, 1, 1, size, width)
        first = torch.arange(self.kv_heads, device=q.device, dtype=torch.int32)
        first *= block_tokens // size
        tables = (choice.rows[:, None] + first[:, None]).flatten(0, 1)
        counts = choice.counts[:, None].expand(-1, self.kv_heads).flatten()
        query = torch.cat((torch.zeros_like(q), q), 2).view(-1, shared, 2 * self.head_dim)
        out = q.new_empty((len(query), shared, self.head_dim))
        slots = torch.arange(len(query), dtype=torch.int32, device=q.device)
        for start in range(0, len(query), ROWS):
            some = slice(start, start + ROWS)
            given = query[some], rows, tables[some], slots[: len(query[some])], None, counts[some]
            latent_attention(*given, self.scale, rank=self.head_dim, max_query=1, out=out[some])
        return out.view(q.shape)


def turned(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotates the first n elements of heads [T, heads, size]; cos_sin [T, n] has a row for each
    token."""
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos_sin[:, None].to(wide).chunk(2, -1)
    halves, rest = x.tensor_split([cos_sin.shape[1]], -1)
    a, b = halves.to(wide).chunk(2, -1)
    rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
    return torch.cat((rotated, rest), -1)
