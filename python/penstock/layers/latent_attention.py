"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), over latents in the KV cache.

A head's key and value are projections of the token's latent, so products with a key equal products
of the query, multiplied by the key projection, with the latent; the value projection multiplies the
weighted sum of latents. So all heads read one row per token. Ranks share the heads, and each has
all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from penstock_kernels import latent_attention, latent_kv_write
from torch import Tensor

from penstock.config import AttentionSpec, Gate, LatentSpec, NormSpec, ResidualSpec
from penstock.layers.attention import SelfAttention, StepContext, position_factors
from penstock.layers.base import Build, Residual
from penstock.layers.gated_norm import gated
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.norm import RmsNorm
from penstock.parallel import Share
from penstock.weights import Target


class LatentUp(ColumnLinear):
    """The projections of a latent to keys and values of this rank's heads.

    They are kept as floats, whatever the checkpoint's format is.
    """

    def __init__(self, build: Build, residual: ResidualSpec, spec: AttentionSpec) -> None:
        assert spec.latent is not None
        self.sizes = [spec.latent.still, spec.latent.value]
        stream = replace(residual, hidden=spec.latent.rank)
        super().__init__(build, {"kv": spec.heads * sum(self.sizes)}, stream, False)
        self.dtype = build.dtype
        self.keys: Tensor | None = None
        """[heads, key elements that do not rotate, rank]."""
        self.values: Tensor | None = None
        """[heads, rank, value elements]."""

    def finish(self) -> None:
        """Splits the matrix into key and value projections."""
        super().finish()
        matrix = self.method.dequantize(self.weights).to(self.dtype)
        self.weights: Mapping[str, Tensor] = {"matrix": matrix}
        heads = matrix.view(-1, sum(self.sizes), matrix.shape[1])
        self.keys, values = heads.split(self.sizes, dim=1)
        self.values = values.transpose(1, 2)


class ScaledNorm(RmsNorm):
    """RMSNorm times a factor, which the weight contains."""

    def __init__(self, build: Build, size: int, spec: NormSpec, factor: float) -> None:
        super().__init__(build, size, spec)
        # In 16 bits the product would be rounded once more.
        self.weight = build.empty(size, dtype=torch.promote_types(build.dtype, torch.float32))
        self.factor = factor

    def finish(self) -> None:
        """Multiplies the weight."""
        super().finish()
        self.weight.mul_(self.factor)


def latent_norm(build: Build, latent: LatentSpec) -> RmsNorm:
    """Builds the norm of a latent."""
    if latent.factor != 1:
        return ScaledNorm(build, latent.rank, latent.norm, latent.factor)
    return RmsNorm(build, latent.rank, latent.norm)


class LatentAttention(SelfAttention):
    """Multi-head latent attention of layer `index`."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        latent, rope = spec.latent, spec.rope
        assert latent is not None
        self.index, self.group = index, build.group
        self.heads = build.group.share(spec.heads, "num_attention_heads")
        self.sinks = build.empty(self.heads, dtype=torch.float32) if spec.sinks else None
        self.rank, self.row = latent.rank, latent.rank + latent.rotated
        self.sizes = [latent.still, latent.rotated]
        self.scale = spec.scale
        self.interleaved = rope is not None and rope.interleaved
        self.cos_sin = build.rope_table(rope, latent.rotated)
        factor = spec.position_scale
        scaled = factor is not None and factor.grows(build.positions)
        self.factors = position_factors(factor, build) if factor and scaled else None
        queries = {"q": spec.heads * sum(self.sizes)}
        down = {"q_a": latent.query_rank} if latent.query_rank else queries
        gates = {Gate.OWN: spec.heads * latent.value, Gate.PER_HEAD: spec.heads}
        gate = {} if spec.gate is None else {"gate": gates[spec.gate]}
        parts = {**gate, **down, "kv": self.row}
        whole = {"q_a": Share(), "kv": Share()}
        self.qkv = ColumnLinear(build.below("qkv"), parts, residual, False, shares=whole)
        self.query_norm: RmsNorm | None = None
        self.query_up: ColumnLinear | None = None
        if latent.query_rank:
            self.query_norm = RmsNorm(build, latent.query_rank, latent.norm)
            self.query_up = self.query_projection(build.below("query_up"), residual, spec)
        self.kv_norm = latent_norm(build, latent)
        self.rotated_norm: RmsNorm | None = None
        if latent.rotated_norm:
            self.rotated_norm = RmsNorm(build, latent.rotated, latent.norm)
        self.kv_up = LatentUp(build.below("kv_up"), residual, spec)
        self.out = RowLinear(build.below("out"), residual, spec.heads * latent.value, False)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the sinks of this rank's heads."""
        if self.sinks is None:
            return {}
        return {"sinks": Target.share(self.sinks, 0, self.group.rank, self.group.size)}

    def query_projection(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec
    ) -> ColumnLinear:
        """The matrix from the queries' latent to each head's query."""
        assert spec.latent is not None
        stream = replace(residual, hidden=spec.latent.query_rank)
        return ColumnLinear(build, {"q": spec.heads * sum(self.sizes)}, stream, False)

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """Attends: (queries or their latent | latent, key to rotate) [T, ...] -> [T, heads *
        value]."""
        q, kv = qkv[:, : -self.row], qkv[:, -self.row :]
        if self.query_up is not None and self.query_norm is not None:
            q, _ = self.query_up(self.query_norm, Residual(q, None, False))
        return self.mix_heads(q, kv, context)

    def mix_heads(self, q: Tensor, kv: Tensor, context: StepContext) -> Tensor:
        """Attends: q [T, heads * key elements], kv [T, rank + R] -> [T, heads * value]."""
        keys, values = self.kv_up.keys, self.kv_up.values
        assert keys is not None and values is not None
        if self.factors is not None:
            q = q * self.factors.index_select(0, context.positions)[:, None]
        still, rotated = q.view(len(q), self.heads, -1).split(self.sizes, dim=2)
        query = q.new_empty((len(q), self.heads, self.row))
        _multiply(still, keys, query[..., : self.rank])
        latents = self._attend(query, rotated, kv, context)
        mixed = q.new_empty((len(q), self.heads, values.shape[2]))
        _multiply(latents, values, mixed)
        return mixed.view(len(q), -1)

    def _attend(self, q: Tensor, rotated: Tensor, kv: Tensor, context: StepContext) -> Tensor:
        """Attends over rows of latents that all heads share. Returns [T, heads, rank].

        q [T, heads, rank + R]: its first `rank` columns are the queries' products with the key
        projection; the others become `rotated` [T, heads, R] by its position. kv [T, rank + R] is
        normalised, its key perhaps in place, rotated and stored.
        """
        places, cache = context.places[self.index], context.kv_cache(self.index).data
        if self.rotated_norm is not None:
            kv[:, self.rank :] = self.rotated_norm(Residual(kv[:, self.rank :], None, False))[0]
        norm, turn = self.kv_norm, (self.cos_sin, context.positions, places.slot_mapping)
        latent_kv_write(rotated, kv, norm.weight, norm.eps, *turn, cache, q, self.interleaved)
        out = torch.empty((*q.shape[:2], self.rank), dtype=q.dtype, device=q.device)
        self.attend_rows(q, context, out)
        return out

    def attend_rows(self, q: Tensor, context: StepContext, out: Tensor) -> None:
        """Attends q [T, heads, rank + R] to the rows of the cache. Fills out [T, heads, rank]."""
        places, cache = context.places[self.index], context.kv_cache(self.index).data
        if context.decodes is not None:
            decodes, first = context.decodes, slice(context.decodes.count)
            latent_attention(
                *(q[first], cache, places.tables, decodes.slots, None, decodes.kv_len, self.scale),
                rank=self.rank,
                max_query=1,
                out=out[first],
                sinks=self.sinks,
            )
        if context.chunks is not None:
            chunks = context.chunks
            latent_attention(
                *(q, cache, places.tables, chunks.slots, chunks.query_start, chunks.kv_len),
                self.scale,
                rank=self.rank,
                max_query=chunks.max_query,
                out=out,
                sinks=self.sinks,
            )


class HeadGatedLatentAttention(LatentAttention):
    """As LatentAttention, whose heads are multiplied by the sigmoid of one number each."""

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `LatentAttention.mix`, of [numbers | queries or their latent | latent, key]."""
        numbers, rest = qkv.tensor_split([self.heads], 1)
        heads = super().mix(rest, context).view(len(qkv), self.heads, -1)
        return gated(heads, numbers[:, :, None]).flatten(1)


def _multiply(x: Tensor, matrices: Tensor, out: Tensor) -> None:
    """x [T, heads, n] by a matrix [n, m] of each head, into out [T, heads, m]."""
    torch.bmm(x.transpose(0, 1), matrices, out=out.transpose(0, 1))
