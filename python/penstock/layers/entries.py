"""Compressed entries of attention (DeepSeek-V4): windows of tokens, summed up.

A token's row in the layer's own cache has what later entries need of it. The step that has the last
token of a window reads the rows of the window, and stores the entry in a cache of its own, at the
place of the window. So entries depend on positions alone, and blocks can be shared as others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

import torch
from penstock_kernels import index_tokens, window_sum
from torch import Tensor

from penstock.config import ResidualSpec, SharedKeySpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.indexed_attention import HeadWeights, IndexMatrix
from penstock.layers.linear import ColumnLinear
from penstock.layers.norm import RmsNorm
from penstock.layers.rope import rotate_last
from penstock.layers.step_rows import Rows, cache_rows, once, step_tokens, window_ends, write_rows
from penstock.parallel import Share
from penstock.weights import Target


class EntryKey(Layer):
    """An entry, or its index key: a window's tokens, summed up with softmax(gates + bias) of each
    element, a norm, and RoPE at the window's first token. With overlap, the window before counts
    too, with the first half of its tokens' numbers; the second half is for their own window."""

    def __init__(self, build: Build, size: int, spec: SharedKeySpec, first: int) -> None:
        """`first`: the column of a row of the cache at which values begin; gates follow."""
        assert spec.compression is not None
        self.first, rate = first, spec.compression.rate
        wide = torch.promote_types(build.dtype, torch.float32)
        self.bias = build.empty(rate, spec.compression.inputs(size) // 2, dtype=wide)
        self.norm = RmsNorm(build, size, spec.norm)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the gates' bias by place in a window, replicated on every rank."""
        return {"bias": Target.whole(self.bias)}

    def __call__(self, cache: Tensor, rows: Tensor, counts: Tensor, angles: Tensor) -> Tensor:
        """Sums up the tokens at rows [E, reach] of a cache [R, W]; the last `counts` [E] of them
        exist. `angles` [E, R] are cosines and sines. Returns [E, size]."""
        summed = window_sum(cache, rows, counts, self.bias, self.first)
        key, _ = self.norm(Residual(summed, None, False))
        rotate_last(key[:, None], angles)
        return key


class Entries(Layer):
    """The entries of a layer: stores them, and finds those that a query attends to."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: SharedKeySpec) -> None:
        assert spec.compression is not None
        self.spec, self.compression = spec, spec.compression
        parts = self._parts()
        whole = {name: Share() for name in parts}
        # Floats in any weight format, as in published files.
        below = replace(build.below("inputs"), methods=build.methods.floats())
        self.inputs = ColumnLinear(below, parts, residual, False, shares=whole)
        firsts = list(accumulate(map(self.compression.inputs, spec.entry_sizes), initial=spec.size))
        self.key = EntryKey(build, spec.size, spec, firsts[0])
        self.positions = build.positions

    def _parts(self) -> Mapping[str, int]:
        """The outputs of the matrix of what entries need of a token."""
        half = self.compression.inputs(self.spec.size) // 2
        return {"values": half, "gates": half}

    def step(self, cache: Tensor, index: int, cos_sin: Tensor, context: StepContext) -> None:
        """Stores the entries of the windows that end in this step, of layer `index`, whose rows are
        in `cache` [R, W] already."""
        own, places = context.places[index], context.places[self.compression.cache]
        rate, data = self.compression.rate, context.kv_cache(self.compression.cache).data
        ends, tokens = window_ends(context, rate), step_tokens(context)
        end = tokens.seen.index_select(0, ends.tokens)
        slots = tokens.slots.index_select(0, ends.tokens)
        steps = torch.arange(-self.compression.reach, 0, dtype=torch.int32, device=end.device)
        at = end[:, None] + steps
        block = data.shape[3]
        rows = cache_rows(own.tables, slots, at.clamp(min=0), block)
        counts = torch.where(ends.exist, end.clamp(max=self.compression.reach), 0)
        angles = cos_sin.index_select(0, (end - rate).clamp(min=0))
        found = self._entries(cache, rows, counts, angles)
        row = cache_rows(places.tables, slots, at[:, -1:].clamp(min=0), block)[:, 0]
        view = self._view(data)
        target = row // block * view.shape[3] + row % block // rate
        flat = view.view(-1, view.shape[4])
        write_rows(flat, target, _padded(found, flat.shape[1]), ends.exist)

    def _entries(self, *windows: Tensor) -> list[Tensor]:
        """Entries [E, size] of what `EntryKey` takes, and what is stored behind them."""
        return [self.key(*windows)]

    def _view(self, data: Tensor) -> Tensor:
        """The cache of entries as [blocks, 1, 1, entries of a block, elements]."""
        blocks, _, _, tokens, width = data.shape
        count = max(tokens // self.compression.rate, 1)
        return data.view(blocks, 1, 1, count, tokens * width // count)

    def tables(self, context: StepContext) -> Tensor:
        """The blocks of a sequence that have entries [table rows, blocks]. A window may span
        several; then the last of them has the entry."""
        cache = self.compression.cache
        places, block = context.places[cache], context.kv_cache(cache).data.shape[3]
        every = self.compression.rate // block
        if every < 2:
            return places.tables
        key = "tables", id(places), every
        return once(context, key, lambda: places.tables[:, every - 1 :: every].contiguous())

    def counts(self, context: StepContext) -> Tensor:
        """How many entries each token sees, [T] int32."""
        return step_tokens(context).seen // self.compression.rate

    def seen(
        self, x: Tensor, latent: Tensor, cos_sin: Tensor, context: StepContext
    ) -> tuple[Tensor, Tensor, Rows]:
        """Returns what `latent_attention` takes: the cache, each token's table, and the tables with
        the number of entries. x [T, hidden] is the layer's input, `latent` [T, rank] its queries'
        latent."""
        view = self._view(context.kv_cache(self.compression.cache).data)
        rows = Rows(self.tables(context), self.counts(context))
        return view, step_tokens(context).slots, rows


class ChosenEntries(Entries):
    """As Entries. An indexer chooses some of them, by index keys that are stored behind them."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: SharedKeySpec) -> None:
        super().__init__(build, residual, spec)
        indexer = self.compression.indexer
        assert indexer is not None
        self.heads, self.head_dim, self.top_k = indexer.heads, indexer.head_dim, indexer.top_k
        first = spec.size + self.compression.inputs(spec.size)
        self.index_key = EntryKey(build, indexer.head_dim, spec, first)
        stream = replace(residual, hidden=spec.query_rank)
        queries = indexer.heads * indexer.head_dim
        self.queries = IndexMatrix(build.below("queries"), queries, stream)
        self.head_weights = HeadWeights(build, indexer.heads, residual.hidden)

    def _parts(self) -> Mapping[str, int]:
        assert self.compression.indexer is not None
        half = self.compression.inputs(self.compression.indexer.head_dim) // 2
        return {**super()._parts(), "index_values": half, "index_gates": half}

    def _entries(self, *windows: Tensor) -> list[Tensor]:
        return [*super()._entries(*windows), self.index_key(*windows)]

    def seen(
        self, x: Tensor, latent: Tensor, cos_sin: Tensor, context: StepContext
    ) -> tuple[Tensor, Tensor, Rows]:
        """As `Entries.seen`: each token has a table of entries, as blocks of one."""
        view, slots, every = super().seen(x, latent, cos_sin, context)
        if self.positions // self.compression.rate <= self.top_k:
            return view, slots, every  # no sequence has more entries
        q = self.queries.product(latent).view(len(x), self.heads, self.head_dim)
        rotate_last(q, cos_sin.index_select(0, context.positions))
        rows = torch.empty((len(x), self.top_k), dtype=torch.int32, device=x.device)
        counts = torch.zeros_like(every.counts)
        tables = every.rows, slots, None, every.counts
        index_tokens(q, self.head_weights(x), view, *tables, rows, counts)
        own = torch.arange(len(x), dtype=torch.int32, device=x.device)
        return view.view(-1, 1, 1, 1, view.shape[4]), own, Rows(rows, counts)


def entries_of(build: Build, residual: ResidualSpec, spec: SharedKeySpec) -> Entries | None:
    """Builds the entries of a layer; None if it has none."""
    if spec.compression is None:
        return None
    chosen = spec.compression.indexer is not None
    return (ChosenEntries if chosen else Entries)(build, residual, spec)


def _padded(parts: list[Tensor], width: int) -> Tensor:
    """An entry [E, size], and perhaps an index key at the end of the row: [E, width]."""
    row = parts[0].new_zeros((len(parts[0]), width))
    row[:, : parts[0].shape[1]] = parts[0]
    for key in parts[1:]:
        row[:, -key.shape[1] :] = key
    return row
