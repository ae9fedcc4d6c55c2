"""Attention over paged KV memory: the context of a step, and one layer's calls of the kernels.

A step may mix decodes and prompt chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from penstock_kernels import (
    latent_attention,
    latent_kv_write,
    paged_decode_attention,
    paged_prefill_attention,
    rope_kv_write,
)
from torch import Tensor

from penstock.cache import LayerCache


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
class StepContext:
    """Built by the worker for each step; read by layers."""

    positions: Tensor  # [T] int32
    places: Sequence[KvPlaces]  # of each layer: those of its KV group
    caches: Sequence[LayerCache]  # of each layer
    decodes: Decodes | None
    chunks: Chunks | None


@dataclass(frozen=True)
class KvScales:
    """What an fp8 cache divides keys and values by before it stores them."""

    key: float
    value: float


class AttentionShape(Protocol):
    """The parameters of a layer's attention kernels."""

    index: int
    scale: float
    window: int  # 0 = unlimited
    softcap: float  # bound of the scores; 0 = none
    sinks: Tensor | None  # [heads] float32: one more logit in each softmax
    cos_sin: Tensor  # [positions, head_dim] float32
    kv_scales: KvScales | None  # `scale` contains the key's


def attend(q: Tensor, k: Tensor, v: Tensor, layer: AttentionShape, context: StepContext) -> Tensor:
    """Rotates q and k, stores k and v, attends over all visible keys. Returns [T, heads, head_dim].

    May rotate q in place. Decode rows come first; their split-KV kernel also rotates and stores. It
    writes zeros to the chunk rows that are its padding.
    """
    scales = layer.kv_scales
    if scales is None:
        return _attend((q, k, v), layer, context)
    return _attend((q, k / scales.key, v / scales.value), layer, context).mul_(scales.value)


def _attend(
    qkv: tuple[Tensor, Tensor, Tensor], layer: AttentionShape, context: StepContext
) -> Tensor:
    q, k, v = qkv
    if context.chunks is None:
        assert context.decodes is not None
        return _decode((q, k, v), layer, context, context.decodes, None)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if context.decodes is not None:
        first = slice(context.decodes.count)
        _decode((q[first], k[first], v[first]), layer, context, context.decodes, out[first])
    _prefill((q, k, v), layer, context, context.chunks, out)
    return out


def _decode(
    qkv: tuple[Tensor, Tensor, Tensor],
    layer: AttentionShape,
    context: StepContext,
    rows: Decodes,
    out: Tensor | None,
) -> Tensor:
    kv, cache = context.places[layer.index], context.caches[layer.index]
    places = context.positions[: rows.count], kv.slot_mapping[: rows.count]
    memory = kv.tables, rows.slots, rows.kv_len
    rule = layer.scale, layer.window, out
    return paged_decode_attention(
        *(*qkv, layer.cos_sin, *places, cache.data, *memory, *rule),
        softcap=layer.softcap,
        sinks=layer.sinks,
        kv_params=cache.params,
    )


def _prefill(
    qkv: tuple[Tensor, Tensor, Tensor],
    layer: AttentionShape,
    context: StepContext,
    rows: Chunks,
    out: Tensor,
) -> None:
    kv, cache = context.places[layer.index], context.caches[layer.index]
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
        sinks=layer.sinks,
        kv_params=cache.params,
    )


class RowNorm(Protocol):
    """An RMSNorm."""

    weight: Tensor
    eps: float


class LatentShape(Protocol):
    """The parameters of the kernels of a layer with latent attention."""

    index: int
    scale: float
    rank: int  # elements of the latent
    cos_sin: Tensor  # [positions, rotated dimensions] float32
    interleaved: bool  # whether neighbours rotate together

    @property
    def kv_norm(self) -> RowNorm:
        """The norm of the latent."""


def attend_latent(
    q: Tensor, rotated: Tensor, kv: Tensor, layer: LatentShape, context: StepContext
) -> Tensor:
    """Attends over rows of latents that all heads share. Returns [T, heads, rank].

    q [T, heads, rank + R]: its first `rank` columns are the queries' products with the key
    projection; the others become `rotated` [T, heads, R] by its position. kv [T, rank + R] is
    normalised, rotated and stored.
    """
    places, cache = context.places[layer.index], context.caches[layer.index].data
    norm, turn = layer.kv_norm, (layer.cos_sin, context.positions, places.slot_mapping)
    latent_kv_write(rotated, kv, norm.weight, norm.eps, *turn, cache, q, layer.interleaved)
    out = torch.empty((*q.shape[:2], layer.rank), dtype=q.dtype, device=q.device)
    if context.decodes is not None:
        decodes, first = context.decodes, slice(context.decodes.count)
        latent_attention(
            *(q[first], cache, places.tables, decodes.slots, None, decodes.kv_len, layer.scale),
            rank=layer.rank,
            max_query=1,
            out=out[first],
        )
    if context.chunks is not None:
        chunks = context.chunks
        latent_attention(
            *(q, cache, places.tables, chunks.slots, chunks.query_start, chunks.kv_len),
            layer.scale,
            rank=layer.rank,
            max_query=chunks.max_query,
            out=out,
        )
    return out
