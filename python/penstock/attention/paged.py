"""One layer's attention in a step that may mix decodes and prompt chunks."""

from __future__ import annotations

from typing import Protocol

import torch
from penstock_kernels import paged_decode_attention, paged_prefill_attention, rope_kv_write
from torch import Tensor

from penstock.attention.context import Chunks, Decodes, StepContext


class AttentionShape(Protocol):
    """What a layer says about its attention."""

    index: int
    scale: float
    window: int  # 0 = unlimited


def attend(q: Tensor, k: Tensor, v: Tensor, layer: AttentionShape, context: StepContext) -> Tensor:
    """[T, heads, head_dim]: rotates q and k, stores k and v, and attends over the whole past.

    q may be rotated in place. Decode rows come first and take the split-KV kernel, which rotates
    and stores by itself.
    """
    if context.chunks is None:
        assert context.decodes is not None
        return _decode((q, k, v), layer, context, context.decodes, None)
    if context.decodes is None:
        return _prefill((q, k, v), layer, context, context.chunks, None)
    first = context.decodes.count
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    ahead, behind = (q[:first], k[:first], v[:first]), (q[first:], k[first:], v[first:])
    _decode(ahead, layer, context, context.decodes, out[:first])
    _prefill(behind, layer, context, context.chunks, out[first:])
    return out


def _decode(
    qkv: tuple[Tensor, Tensor, Tensor],
    layer: AttentionShape,
    context: StepContext,
    rows: Decodes,
    out: Tensor | None,
) -> Tensor:
    places = context.positions[: rows.count], context.slot_mapping[: rows.count]
    cache, memory = context.caches[layer.index], (rows.tables, rows.slots, rows.kv_len)
    return paged_decode_attention(
        *qkv, context.cos_sin, *places, cache, *memory, layer.scale, layer.window, out
    )


def _prefill(
    qkv: tuple[Tensor, Tensor, Tensor],
    layer: AttentionShape,
    context: StepContext,
    rows: Chunks,
    out: Tensor | None,
) -> Tensor:
    first = len(context.positions) - len(qkv[0])
    places = context.positions[first:], context.slot_mapping[first:]
    cache, memory = context.caches[layer.index], (rows.tables, rows.slots)
    rope_kv_write(*qkv, context.cos_sin, *places, cache)
    return paged_prefill_attention(
        qkv[0],
        cache,
        *memory,
        rows.query_start,
        rows.kv_len,
        layer.scale,
        layer.window,
        max_query=rows.max_query,
        out=out,
    )
