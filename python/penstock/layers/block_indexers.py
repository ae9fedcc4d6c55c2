"""The choice of the blocks of tokens that queries attend to: one for all heads, by a key of each
block (Qwen4-Exp), or one for each KV head, by the keys of all tokens (MiniMax-M3).

An index key is the end of its token's row in the cache, of the first KV head's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import NamedTuple

import torch
from penstock_kernels import index_blocks, index_tokens
from torch import Tensor

from penstock.config import AttentionSpec, BlockIndexerSpec, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer
from penstock.layers.indexed_attention import IndexMatrix
from penstock.layers.linear import ColumnLinear
from penstock.layers.norm import HeadNorm, normed_heads
from penstock.layers.rope import turned
from penstock.layers.step_rows import StepTokens, write_rows
from penstock.parallel import Share


class BlockChoice(NamedTuple):
    """What a step's queries attend to: tokens of their sequences in pages, which are as large as
    blocks of the cache and of the indexer allow."""

    pages: Tensor
    """[T, kv_heads, P] int32: pages of each KV head of this rank, in the order of the tokens."""
    counts: Tensor
    """[T] int32: how many tokens are in them, of the last page its first ones."""
    page_tokens: int


class BlockIndexer(Layer, ABC):
    """Chooses the blocks that each query of a layer attends to."""

    def __init__(self, build: Build, spec: AttentionSpec, chosen: BlockIndexerSpec) -> None:
        self.spec, self.size = chosen, chosen.head_dim
        self.query_norm = HeadNorm(build, chosen.head_dim, chosen.norm)
        self.key_norm = HeadNorm(build, chosen.head_dim, chosen.norm)
        assert spec.rope is not None
        rotated = spec.rope.dims(spec.head_dim)
        self.cos_sin = build.rope_table(replace(spec.rope, fraction=1.0), rotated)

    @abstractmethod
    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, hidden] -> index queries [T, heads, size], index keys [T, size] as the cache has
        them at first."""

    def complete(self, cache: Tensor, places: Tensor, context: StepContext) -> None:
        """Follows when a step's rows are stored. cache [blocks, 1, kv_heads, block_tokens, W];
        places [T] int32: rows of the first KV head, less than 0 for padding."""

    @abstractmethod
    def choose(
        self, queries: Tensor, cache: Tensor, tables: Tensor, seen: StepTokens
    ) -> BlockChoice:
        """cache [blocks, 1, kv_heads, block_tokens, W]; tables [N, B] int32."""


class MeanKeyIndexer(BlockIndexer):
    """One choice for all heads, by the mean index key of each block. A query also attends to what
    follows its last whole block. Every rank chooses for itself, by the same numbers."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, chosen: BlockIndexerSpec
    ) -> None:
        super().__init__(build, spec, chosen)
        outputs = (chosen.heads + 1) * chosen.head_dim
        self.matrix = IndexMatrix(build.below("matrix"), outputs, residual)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """As `BlockIndexer.project`; keys are not normalised before their block is whole."""
        heads = self.matrix.product(x).view(len(x), -1, self.size)
        queries, keys = heads[:, :-1], heads[:, -1]
        normed_heads(queries, queries[:, :0], self.query_norm, self.query_norm)
        return turned(queries, self.cos_sin.index_select(0, positions)), keys

    def complete(self, cache: Tensor, places: Tensor, context: StepContext) -> None:
        """Puts the key of each block whose last token is there in the place of that token's."""
        size, width = self.spec.block, cache.shape[4]
        keys = cache.view(-1, width)[:, -self.size :]
        members = places[:, None] + torch.arange(1 - size, 1, device=places.device)
        found = self.block_keys(keys[members.clamp_min(0)], context.positions)
        ends = (context.positions % size == size - 1) & (places >= 0)
        write_rows(keys, places, found, ends)

    def block_keys(self, keys: Tensor, positions: Tensor) -> Tensor:
        """The keys of whole blocks, rotated by the position of their first token: the means of
        their tokens' index keys [T, block, size], for last tokens at `positions` [T] -> [T,
        size]."""
        wide = torch.promote_types(keys.dtype, torch.float32)
        means = keys.to(wide).mean(1).to(keys.dtype)[:, None]
        normed_heads(means, means[:, :0], self.key_norm, self.key_norm)
        first = (positions - (self.spec.block - 1)).clamp_min(0)
        return turned(means, self.cos_sin.index_select(0, first))[:, 0]

    def choose(
        self, queries: Tensor, cache: Tensor, tables: Tensor, seen: StepTokens
    ) -> BlockChoice:
        """As `BlockIndexer.choose`: chosen blocks, then what follows the last whole block."""
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
        pages = blocks[:, None] + _first_pages(heads, within, blocks.device)
        return BlockChoice(pages, (counts - whole) * size + seen.seen, size)


class HeadIndexMatrix(ColumnLinear):
    """The matrices of an indexer with a query for each KV head: ranks share the queries as they
    share KV heads, and each has the key's."""

    def __init__(
        self, build: Build, residual: ResidualSpec, chosen: BlockIndexerSpec, share: Share
    ) -> None:
        parts = {"queries": chosen.heads * chosen.head_dim, "key": chosen.head_dim}
        super().__init__(build, parts, residual, False, shares={"queries": share, "key": Share()})


class BestTokenIndexer(BlockIndexer):
    """A choice for each KV head, by the best token of each block (arXiv:2606.13392). The query's
    own block, up to the query, is always among the chosen."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, chosen: BlockIndexerSpec
    ) -> None:
        super().__init__(build, spec, chosen)
        share = build.group.kv_share(chosen.heads)
        self.matrix = HeadIndexMatrix(build.below("matrix"), residual, chosen, share)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """As `BlockIndexer.project`, of this rank's heads."""
        heads = self.matrix.product(x).view(len(x), -1, self.size)
        normed_heads(heads[:, :-1], heads[:, -1:], self.query_norm, self.key_norm)
        heads = turned(heads, self.cos_sin.index_select(0, positions))
        return heads[:, :-1], heads[:, -1]

    def choose(
        self, queries: Tensor, cache: Tensor, tables: Tensor, seen: StepTokens
    ) -> BlockChoice:
        """As `BlockIndexer.choose`; the blocks are pages if they fit blocks of the cache."""
        size, most, (heads, block_tokens) = self.spec.block, self.spec.top_k, cache.shape[2:4]
        chosen = torch.empty((len(queries), heads, most), dtype=torch.int32, device=queries.device)
        where = tables, seen.slots, seen.seen
        index_blocks(queries, cache, *where, chosen, block=size, recent=self.spec.recent)
        page = math.gcd(size, block_tokens)
        firsts = torch.arange(0, size, page, dtype=torch.int32, device=queries.device)
        tokens = (chosen[..., None] * size + firsts).flatten(2)
        # Behind the chosen, and while kernels are only compiled, they are anything.
        tokens = tokens.clamp(0, tables.shape[1] * block_tokens - 1)
        blocks = tables[seen.slots.long()[:, None, None], tokens // block_tokens]
        within = block_tokens // page
        pages = blocks * (heads * within) + tokens % block_tokens // page
        skipped = ((seen.seen + size - 1) // size - most).clamp_min(0)
        counts = seen.seen - skipped * size
        return BlockChoice(pages + _first_pages(heads, within, pages.device), counts, page)


def _first_pages(heads: int, within: int, device: torch.device) -> Tensor:
    """The first page of each KV head in a block of the cache, [heads, 1] int32."""
    return torch.arange(0, heads * within, within, dtype=torch.int32, device=device)[:, None]


def block_indexer_of(build: Build, residual: ResidualSpec, spec: AttentionSpec) -> BlockIndexer:
    """Builds the indexer of a specification that has one."""
    assert spec.block_indexer is not None
    kind = BestTokenIndexer if spec.block_indexer.by_head else MeanKeyIndexer
    return kind(build, residual, spec, spec.block_indexer)
