"""Attention whose one key of a token is its value too (DeepSeek-V4).

All heads read one row per token: that of the last tokens, and those of compressed entries. A value
has rotated with its key, so the output rotates back by the query's angle. Ranks share the heads,
and each has all rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from penstock_kernels import head_norm
from torch import Tensor

from penstock.config import AttentionSpec, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.entries import entries_of
from penstock.layers.grouped_linear import GroupedLinear
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.listed_rows import Listed, attend_listed
from penstock.layers.norm import Norm, RmsNorm
from penstock.layers.rope import rotate_last
from penstock.layers.step_rows import Rows, last_rows, write_rows
from penstock.parallel import Share
from penstock.weights import Target


class SharedKeyAttention(Layer):
    """Attention of layer `index` to the last tokens, and to compressed entries if it has any."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        key = spec.shared_key
        assert key is not None
        self.index, self.group, self.scale = index, build.group, spec.scale
        self.heads = build.group.share(spec.heads, "num_attention_heads")
        self.size, self.eps = key.size, key.norm.eps
        self.window = min(key.window, build.positions)
        self.cos_sin = build.rope_table(spec.rope, key.rotated)
        wide = torch.promote_types(build.dtype, torch.float32)
        self.sinks = build.empty(self.heads, dtype=wide)
        self.ones = torch.ones(key.size, dtype=build.dtype, device=build.device)
        parts, whole = {"q_a": key.query_rank, "kv": key.size}, {"q_a": Share(), "kv": Share()}
        self.qkv = ColumnLinear(build.below("qkv"), parts, residual, False, shares=whole)
        self.query_norm = RmsNorm(build, key.query_rank, key.norm)
        stream = replace(residual, hidden=key.query_rank)
        queries = {"q": spec.heads * key.size}
        self.query_up = ColumnLinear(build.below("query_up"), queries, stream, False)
        self.key_norm = RmsNorm(build, key.size, key.norm)
        self.entries = entries_of(build.below("entries"), residual, key)
        inputs = spec.heads * key.size
        self.groups = GroupedLinear(build.below("groups"), residual, inputs, key)
        self.out = RowLinear(build.below("out"), residual, key.groups * key.group_rank, False)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the sinks of this rank's heads."""
        return {"sinks": Target.share(self.sinks, 0, self.group.rank, self.group.size)}

    def __call__(
        self, norm: Norm, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `SelfAttention.__call__`."""
        x, total = norm(residual)
        mixed = self._mixed(x, context, rows)
        return self.out(mixed, total if rows is None else total.index_select(0, rows))

    def product(self, x: Tensor, context: StepContext, rows: Tensor | None = None) -> Tensor:
        """As `SelfAttention.product`."""
        return self.out.product(self._mixed(x, context, rows))

    def _mixed(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """Attends: the normalised input x [T, hidden] -> the input of `out`, of `rows` alone."""
        latent, key = self.qkv.product(x).tensor_split([-self.size], 1)
        latent, _ = self.query_norm(Residual(latent, None, False))
        angles = self.cos_sin.index_select(0, context.positions)
        self._store(x, key, angles, context)
        q = self.query_up.product(latent).view(len(x), self.heads, self.size)
        head_norm(q, q[:, :0], self.ones, self.ones, self.eps)
        rotate_last(q, angles)
        mixed = self._attend(q, x, latent, context)
        rotate_last(mixed, angles, backwards=True)
        mixed = mixed.flatten(1)
        return self.groups.product(mixed if rows is None else mixed.index_select(0, rows))

    def _store(self, x: Tensor, key: Tensor, angles: Tensor, context: StepContext) -> None:
        """Stores each token's row, of its key [T, size], and the entries that are now complete."""
        key, _ = self.key_norm(Residual(key, None, False))
        rotate_last(key[:, None], angles)
        row = key if self.entries is None else torch.cat((key, self.entries.inputs.product(x)), 1)
        cache = self._cache(context)
        slots = context.places[self.index].slot_mapping
        write_rows(cache, slots, row, slots >= 0)
        if self.entries is not None:
            self.entries.step(cache, self.index, self.cos_sin, context)

    def _cache(self, context: StepContext) -> Tensor:
        data = context.kv_cache(self.index).data
        return data.view(-1, data.shape[-1])

    def _attend(self, q: Tensor, x: Tensor, latent: Tensor, context: StepContext) -> Tensor:
        """Attends q [T, heads, size] to its rows. Returns [T, heads, size]."""
        places, block = context.places[self.index], context.kv_cache(self.index).data.shape[3]
        last = last_rows(context, places, self.window, block)
        cache = self._cache(context)
        tokens = cache.view(-1, 1, 1, 1, cache.shape[1])
        own = torch.arange(len(q), dtype=torch.int32, device=q.device)
        if self.entries is None:
            return self._over(q, tokens, own, last, self.sinks, None)
        # The logarithm of each row's sum, of tokens and of entries.
        sums = self.sinks.new_empty((2, len(q), self.heads))
        recent = self._over(q, tokens, own, last, None, sums[0])
        cache, slots, entries = self.entries.seen(x, latent, self.cos_sin, context)
        return joined(
            (recent, self._over(q, cache, slots, entries, None, sums[1])), sums, self.sinks
        )

    def _over(
        self,
        q: Tensor,
        cache: Tensor,
        slots: Tensor,
        seen: Rows,
        sinks: Tensor | None,
        sums: Tensor | None,
    ) -> Tensor:
        """Attends over rows of one cache; each query is a decode of its own."""
        out = torch.empty_like(q)
        # Tables are of slots, or one for each query.
        listed = Listed(cache, seen.rows, slots, seen.counts)
        attend_listed(q, listed, self.scale, out, sinks, sums)
        return out


def joined(parts: tuple[Tensor, Tensor], sums: Tensor, sinks: Tensor) -> Tensor:
    """Attention over the rows of two caches, from that over each, [T, heads, size].

    `sums` [2, T, heads] are logarithms of sums of exponentials, which the sinks [heads] join
    (as splits of keys are added up in Flash-Decoding, Dao et al., 2023).
    """
    every = torch.cat((sums, sinks.expand_as(sums[:1])))
    weights = every.softmax(0)[..., None]
    return (parts[0] * weights[0]).add_(parts[1] * weights[1]).to(parts[0].dtype)
