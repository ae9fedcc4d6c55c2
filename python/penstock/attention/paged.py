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

    q is rotated in place. Decode rows come first and take the split-KV kernel.
    """
    cache = context.caches[layer.index]
    rope_kv_write(q, k, v, context.cos_sin, context.positions, context.slot_mapping, cache)
    if context.chunks is None:
        assert context.decodes is not None
        return _decode(q, cache, layer, context.decodes)
    if context.decodes is None:
        return _prefill(q, cache, layer, context.chunks)
    first = context.decodes.count
    parts = (
        _decode(q[:first], cache, layer, context.decodes),
        _prefill(q[first:], cache, layer, context.chunks),
    )
    return torch.cat(parts)


def _decode(q: Tensor, cache: Tensor, layer: AttentionShape, rows: Decodes) -> Tensor:
    return paged_decode_attention(
        q, cache, rows.tables, rows.slots, rows.kv_len, layer.scale, layer.window
    )


def _prefill(q: Tensor, cache: Tensor, layer: AttentionShape, rows: Chunks) -> Tensor:
    return paged_prefill_attention(
        q,
        cache,
        rows.tables,
        rows.slots,
        rows.query_start,
        rows.kv_len,
        layer.scale,
        layer.window,
        max_query=rows.max_query,
    )
