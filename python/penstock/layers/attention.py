"""Grouped-query attention over the paged KV cache, and the context of a step that it reads.

A step may mix decodes and prompt chunks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from penstock_kernels import paged_decode_attention, paged_prefill_attention, rope_kv_write
from torch import Tensor

from penstock.cache import AnyCache, LayerCache
from penstock.config import (
    AttentionSpec,
    Gate,
    LogNScale,
    NormSpec,
    PositionScale,
    ResidualSpec,
)
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.norm import HeadNorm, Norm, QkNormLayer, normed_heads, qk_norm_of
from penstock.layers.rope import rope_order
from penstock.weights import Target


@dataclass(frozen=True)
class KvPlaces:
    """Where the layers of one KV group read and write keys and values.

    Tables list blocks by position from 0 on. Entries before a group's window may be the ids of
    other sequences' blocks; kernels do not read them.
    """

    tables: Tensor  # [table rows, blocks] int32: of all slots, not only of the step's
    slot_mapping: Tensor  # [T] int32: block * block_tokens + offset; -1 = a padded row


@dataclass(frozen=True)
class Decodes:
    """The sequences that run one token: the first rows of the step.

    The rows of `count` after the last decode are padding with a kv_len of 0. They may be chunk
    rows.
    """

    count: int
    slots: Tensor  # [count] int32: each sequence's row of its tables
    kv_len: Tensor  # [count] int32, this step's token included


@dataclass(frozen=True)
class Chunks:
    """The sequences that run several tokens: all rows after the last decode."""

    slots: Tensor  # [count] int32: each sequence's row of its tables
    query_start: Tensor  # [count + 1] int32, rows of the step
    kv_len: Tensor  # [count] int32, this step's tokens included
    max_query: int  # longest chunk


@dataclass(frozen=True)
class Choice:
    """The tokens that a step's queries attend to, as sequences of blocks of one token or few."""

    slots: Tensor  # [T] int32: 0 to T - 1
    rows: Tensor  # [T, K] int32: blocks of the cache, which are those of all layers of a KV group
    counts: Tensor  # [T] int32: how many tokens are in them, of the last block its first ones
    block_tokens: int = 1


@dataclass
class Chosen:
    """What the last layer with an indexer chose, for layers without one."""

    choice: Choice | None = None


@dataclass
class RouterStates:
    """What the last layer with experts leaves to the next one's router (`RouterSpec.follows`)."""

    hidden: Tensor | None = None  # [T, size]


@dataclass(frozen=True)
class StepContext:
    """Built by the worker for each step; read by layers."""

    positions: Tensor  # [T] int32
    places: Sequence[KvPlaces]  # of each layer: those of its KV group
    caches: Sequence[AnyCache]  # of each layer
    decodes: Decodes | None
    chunks: Chunks | None
    layer_rows: Tensor | None = None  # [T, layers, size]: embeddings per layer; set by the model
    embeddings: Tensor | None = None  # [T, hidden]; set by models whose layers read them
    ids: Tensor | None = None  # [T]: the tokens; set by models whose layers read them
    chosen: Chosen = field(default_factory=Chosen)  # set by layers with an indexer
    routers: RouterStates = field(default_factory=RouterStates)  # set by layers with experts
    token_ids: Tensor | None = None  # [T], for routers that read them; set by the model
    common: dict[tuple[object, ...], Tensor] = field(default_factory=dict)  # see step_rows.once

    def kv_cache(self, layer: int) -> LayerCache:
        """The cache of a layer that has keys and values."""
        return cast("LayerCache", self.caches[layer])


@dataclass(frozen=True)
class KvScales:
    """What an fp8 cache divides keys and values by before it stores them."""

    key: float
    value: float


class ByQuery(NamedTuple):
    """What each query of a step has of its own in its softmax."""

    rel_bias: Tensor | None = None
    """[T, heads, E]: what it adds to the scores of the last E keys, its own first."""
    sinks: Tensor | None = None
    """[T, heads] float32: one more logit; None = those of the layer, if it has any."""

    def first(self, count: int) -> ByQuery:
        """Returns those of the first `count` queries."""
        return ByQuery(*(None if each is None else each[:count] for each in self))


ALIKE = ByQuery()

Qkv = tuple[Tensor, Tensor | None, Tensor | None]  # of [T, heads, head_dim]


class AttentionShape(Protocol):
    """The parameters of a layer's attention kernels."""

    index: int
    scale: float
    window: int  # 0 = unlimited
    aligned: bool  # windows begin at multiples of their size
    softcap: float  # bound of the scores; 0 = none
    sinks: Tensor | None  # [heads] float32: one more logit in each softmax
    slopes: Tensor | None  # [heads] float32, of ALiBi
    cos_sin: Tensor  # [positions, head_dim] float32
    kv_scales: KvScales | None  # `scale` contains the key's


class SelfAttention(Layer, ABC):
    """What attention reads of the stream and adds to it; subclasses attend."""

    qkv: ColumnLinear
    out: RowLinear

    def __call__(
        self, norm: Norm, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the layer.

        Writes this step's keys and values. With `rows` [R], returns these rows alone, [R, hidden].
        """
        qkv, total = self.qkv(norm, residual)
        mixed = self.mix(qkv, context)
        if rows is not None:
            mixed, total = mixed.index_select(0, rows), total.index_select(0, rows)
        return self.out(mixed, total)

    def product(self, x: Tensor, context: StepContext, rows: Tensor | None = None) -> Tensor:
        """Returns the output for a normalised x, both [T, hidden]; a partial sum with several
        ranks."""
        mixed = self.mix(self.qkv.product(x), context)
        return self.out.product(mixed if rows is None else mixed.index_select(0, rows))

    @abstractmethod
    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """Attends: the output of `qkv` [T, ...] -> the input of `out` [T, ...]."""


class Attention(SelfAttention):
    """Self-attention of layer `index`: fused q, k, v; rotary positions; output projection."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        self.index = index
        self.kv_layer = index if spec.kv_layer is None else spec.kv_layer
        self.group = build.group
        self.heads = build.group.share(spec.heads, "num_attention_heads")
        self.kv_share = build.group.kv_share(spec.kv_heads)
        self.kv_heads = spec.kv_heads // self.kv_share.count
        self.head_dim = spec.head_dim
        self.value_dim = spec.value_dim or spec.head_dim
        self.split = [self.heads, self.kv_heads, self.kv_heads]
        self.scale = spec.scale
        self.window = spec.window
        self.aligned = spec.aligned
        self.softcap = spec.softcap
        self.sinks = build.empty(self.heads, dtype=torch.float32) if spec.sinks else None
        self.slopes = self._own_slopes(build, spec.slopes)
        self.kv_scales: KvScales | None = None
        self.rope = spec.rope
        self.cos_sin = build.rope_table(spec.rope, spec.head_dim)
        self.qkv = self._inputs(build.below("qkv"), residual, spec)
        inputs = spec.heads * self.value_dim
        self.out = RowLinear(build.below("out"), residual, inputs, spec.output_bias)

    def _inputs(self, build: Build, residual: ResidualSpec, spec: AttentionSpec) -> ColumnLinear:
        """Builds the projection of what `mix` reads."""
        queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        parts = {"q": queries * (2 if spec.gate is Gate.WITH_QUERIES else 1)}
        if spec.kv_layer is None and not spec.has_own_inputs:
            values = {} if spec.keys_as_values else {"v": spec.kv_heads * self.value_dim}
            parts |= {"k": keys, **values}
        shares = {part: self.kv_share for part in parts if part != "q"}
        if spec.relative is not None:
            parts["relative"] = spec.heads * spec.relative.rank
        if spec.gate in (Gate.OWN, Gate.PER_HEAD_SOFTPLUS, Gate.PER_HEAD):
            parts["gate"] = queries if spec.gate is Gate.OWN else spec.heads
        return ColumnLinear(build, parts, residual, spec.qkv_bias, shares=shares)

    def _own_slopes(self, build: Build, slopes: tuple[float, ...] | None) -> Tensor | None:
        if slopes is None:
            return None
        every = torch.tensor(slopes, dtype=torch.float32, device=build.device)
        return every[self.heads * build.group.rank :][: self.heads].contiguous()

    def scale_cache(self, scales: KvScales) -> None:
        """Stores keys and values divided by `scales` from now on. At most once."""
        self.kv_scales = scales
        self.scale *= scales.key

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the sinks of this rank's heads."""
        if self.sinks is None:
            return {}
        return {"sinks": Target.share(self.sinks, 0, self.group.rank, self.group.size)}

    def finish(self) -> None:
        """Permutes the dimensions of queries and keys into the pairs that the kernels rotate."""
        order = rope_order(self.rope, self.head_dim)
        if order is not None:
            within = torch.tensor(order, device=self.cos_sin.device)
            self._reorder(within)

    def _reorder(self, within: Tensor) -> None:
        whole = torch.arange(self.qkv.outputs, device=within.device)
        rotated = whole[: sum(self.split[:2]) * self.head_dim].view(-1, self.head_dim)
        rotated.copy_(rotated[:, within])
        self.qkv.reorder(whole)

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """Attends: this rank's q, k and v side by side [T, ...] -> [T, heads * head_dim]."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v = torch.split(heads, self.split, dim=1)
        return attend(q, k, v, self, context).view(len(qkv), -1)


class NormedAttention(Attention):
    """Attention that normalises queries and keys before RoPE."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.qk_norm is not None
        shares = build.group.own, self.kv_share
        self.q_norm = qk_norm_of(build, spec.qk_norm, (spec.heads, spec.head_dim), shares[0])
        self.k_norm = qk_norm_of(build, spec.qk_norm, (spec.kv_heads, spec.head_dim), shares[1])

    def _reorder(self, within: Tensor) -> None:
        super()._reorder(within)
        self.q_norm.reorder(within)
        self.k_norm.reorder(within)

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`, with normalised queries and keys."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v = torch.split(heads, self.split, dim=1)
        q, k = normed_heads(q, k, self.q_norm, self.k_norm)
        return attend(q, k, v, self, context).view(len(qkv), -1)


class RotatedNormAttention(NormedAttention):
    """Attention that normalises queries and keys after RoPE. So RoPE is a kernel of its own, and
    the attention kernels get a table that rotates nothing."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        self.angles = self.cos_sin
        self.cos_sin = build.rope_table(None, spec.head_dim)

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `NormedAttention.mix`, in the other order."""
        places, cache = context.places[self.index], context.kv_cache(self.index)
        rows = qkv.view(len(qkv), -1, self.head_dim)[:, : self.heads + self.kv_heads]
        where = context.positions, places.slot_mapping
        # Without keys and values of its own, the kernel rotates all heads in place.
        rope_kv_write(rows, None, None, self.angles, *where, cache.data, None, cache.params)
        return super().mix(qkv, context)


class ValueNormedAttention(NormedAttention):
    """Attention that normalises values as well, which may be the keys before their norm."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.qk_norm is not None
        self.split = self.split[: 2 if spec.keys_as_values else 3]
        norm = NormSpec(spec.qk_norm.norm.eps, learned=False)
        self.value_norm = HeadNorm(build, spec.head_dim, norm) if spec.value_norm else None

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`, with all three normalised."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, *rest = torch.split(heads, self.split, dim=1)
        v = rest[0] if rest else k.clone()
        q, k = normed_heads(q, k, self.q_norm, self.k_norm)
        if self.value_norm is not None:
            normed_heads(v, v[:, :0], self.value_norm, self.value_norm)
        return attend(q, k, v, self, context).view(len(qkv), -1)


class ReadingAttention(Attention):
    """Attention to the keys and values of an earlier layer; has queries alone."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        self.q_norm: QkNormLayer | None = None
        if spec.qk_norm is not None:
            heads = spec.heads, spec.head_dim
            self.q_norm = qk_norm_of(build, spec.qk_norm, heads, build.group.own)

    def _reorder(self, within: Tensor) -> None:
        super()._reorder(within)
        if self.q_norm is not None:
            self.q_norm.reorder(within)

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`, for queries."""
        q = qkv.view(len(qkv), -1, self.head_dim)
        if self.q_norm is not None:
            q, _ = normed_heads(q, q[:, :0], self.q_norm, self.q_norm)
        return attend(q, None, None, self, context).view(len(qkv), -1)


class GatedAttention(NormedAttention):
    """Attention with normalised queries and keys, whose output is multiplied by the sigmoid of a
    gate."""

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `NormedAttention.mix`, of q, k, v and gates side by side."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v, gate = torch.split(heads, [*self.split, self.heads], dim=1)
        q, k = normed_heads(q, k, self.q_norm, self.k_norm)
        mixed = attend(q, k, v, self, context).mul_(gate.sigmoid())
        return mixed.view(len(qkv), -1)


class HeadGatedAttention(NormedAttention):
    """Attention with normalised queries and keys, whose heads are multiplied by the softplus of one
    number each."""

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `NormedAttention.mix`, of q, k, v and numbers side by side."""
        mixed = super().mix(qkv[:, : -self.heads], context).view(len(qkv), self.heads, -1)
        gates = self.factors(qkv[:, -self.heads :])
        return mixed.mul_(gates[:, :, None]).view(len(qkv), -1)

    @staticmethod
    def factors(numbers: Tensor) -> Tensor:
        """The heads' factors, of their numbers, both [T, heads]."""
        return F.softplus(numbers)


class HeadSigmoidAttention(HeadGatedAttention):
    """As HeadGatedAttention, with sigmoids."""

    @staticmethod
    def factors(numbers: Tensor) -> Tensor:
        """The heads' factors, of their numbers, both [T, heads]."""
        return numbers.sigmoid()


class QueryGatedAttention(GatedAttention):
    """As GatedAttention, of checkpoints that have each head's gate behind its query."""

    def finish(self) -> None:
        """Also puts the gates of all heads behind the values."""
        order = rope_order(self.rope, self.head_dim) or list(range(self.head_dim))
        within = torch.tensor(order, device=self.cos_sin.device)
        whole = torch.arange(self.qkv.outputs, device=within.device).view(-1, self.head_dim)
        queries, gates = whole[: 2 * self.heads].unflatten(0, (-1, 2)).unbind(1)
        keys, values = whole[2 * self.heads :].chunk(2)
        rows = queries[:, within], keys[:, within], values, gates
        self.qkv.reorder(torch.cat(rows).view(-1))
        self.q_norm.reorder(within)
        self.k_norm.reorder(within)


class ClippedAttention(Attention):
    """Attention that bounds queries, keys and values."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        self.clip = spec.clip

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`, with bounded ones."""
        return super().mix(qkv.clamp_(-self.clip, self.clip), context)


class NarrowValueAttention(Attention):
    """Attention whose values have fewer elements than keys, or a factor. The cache has zeros behind
    narrow values, so that the kernels need one size of heads."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        self.value_scale = spec.value_scale

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`; the factor is the output's as well."""
        rotated = (self.heads + self.kv_heads) * self.head_dim
        heads = qkv[:, :rotated].view(len(qkv), -1, self.head_dim)
        q, k = torch.split(heads, self.split[:2], dim=1)
        v = qkv[:, rotated:].view(len(qkv), -1, self.value_dim)
        v = F.pad(v, (0, self.head_dim - self.value_dim))
        mixed = attend(q, k, v, self, context)[..., : self.value_dim]
        return (mixed * self.value_scale).view(len(qkv), -1)


class PositionScaledAttention(Attention):
    """Attention whose queries have a factor by position."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.position_scale is not None
        self.factors = position_factors(spec.position_scale, build)

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`, with scaled queries."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v = torch.split(heads, self.split, dim=1)
        factors = self.factors.index_select(0, context.positions)
        return attend(q * factors[:, None, None], k, v, self, context).view(len(qkv), -1)


def position_factors(scale: PositionScale | LogNScale, build: Build) -> Tensor:
    """Returns the queries' factors [positions], in transformers' order of operations."""
    if isinstance(scale, LogNScale):
        seen = torch.arange(1, build.positions + 1).clamp(min=scale.original)
        return (torch.log(seen) / math.log(scale.original)).to(build.device, build.dtype)
    turns = torch.floor((torch.arange(build.positions) + scale.offset) / scale.original)
    return (1 + scale.beta * torch.log(1 + turns)).to(build.device, build.dtype)


def attend(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    layer: AttentionShape,
    context: StepContext,
    by_query: ByQuery = ALIKE,
) -> Tensor:
    """Rotates q and k, stores k and v, attends over all visible keys. Returns [T, heads, head_dim].
    Without k and v, the layer reads what another one stored.

    May rotate q in place. Decode rows come first; their split-KV kernel also rotates and stores. It
    writes zeros to the chunk rows that are its padding.
    """
    scales = layer.kv_scales
    if scales is None:
        return _attend((q, k, v), layer, context, by_query)
    k = None if k is None else k / scales.key
    v = None if v is None else v / scales.value
    return _attend((q, k, v), layer, context, by_query).mul_(scales.value)


def _attend(qkv: Qkv, layer: AttentionShape, context: StepContext, by_query: ByQuery) -> Tensor:
    q, k, v = qkv
    if context.chunks is None:
        assert context.decodes is not None
        return _decode((q, k, v), layer, context, context.decodes, None, by_query)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if context.decodes is not None:
        first = slice(context.decodes.count)
        own = None if k is None else k[first], None if v is None else v[first]
        some = by_query.first(context.decodes.count)
        _decode((q[first], *own), layer, context, context.decodes, out[first], some)
    _prefill((q, k, v), layer, context, context.chunks, out, by_query)
    return out


def _decode(
    qkv: Qkv,
    layer: AttentionShape,
    context: StepContext,
    rows: Decodes,
    out: Tensor | None,
    by_query: ByQuery,
) -> Tensor:
    kv, cache = context.places[layer.index], context.kv_cache(layer.index)
    places = context.positions[: rows.count], kv.slot_mapping[: rows.count]
    memory = kv.tables, rows.slots, rows.kv_len
    rule = layer.scale, layer.window, out
    return paged_decode_attention(
        *(*qkv, layer.cos_sin, *places, cache.data, *memory, *rule),
        softcap=layer.softcap,
        sinks=layer.sinks if by_query.sinks is None else by_query.sinks,
        kv_params=cache.params,
        aligned=layer.aligned,
        slopes=layer.slopes,
        rel_bias=by_query.rel_bias,
    )


def _prefill(
    qkv: Qkv,
    layer: AttentionShape,
    context: StepContext,
    rows: Chunks,
    out: Tensor,
    by_query: ByQuery,
) -> None:
    kv, cache = context.places[layer.index], context.kv_cache(layer.index)
    places = context.positions, kv.slot_mapping
    rope_kv_write(*qkv, layer.cos_sin, *places, cache.data, rows.query_start, cache.params)
    paged_prefill_attention(
        qkv[0],
        cache.data,
        kv.tables,
        rows.slots,
        rows.query_start,
        rows.kv_len,
        layer.scale,
        layer.window,
        max_query=rows.max_query,
        out=out,
        softcap=layer.softcap,
        sinks=layer.sinks if by_query.sinks is None else by_query.sinks,
        kv_params=cache.params,
        aligned=layer.aligned,
        slopes=layer.slopes,
        rel_bias=by_query.rel_bias,
    )
