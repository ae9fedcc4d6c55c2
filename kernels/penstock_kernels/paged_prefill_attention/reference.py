"""Reference of paged_prefill_attention in torch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..kv_quantization import Rows
from ..shared import Rule, attention, gather, wide


def paged_prefill_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    query_start: Tensor,
    kv_len: Tensor,
    scale: float,
    window: int = 0,
    *,
    max_query: int,
    out: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    kv_params: Tensor | None = None,
    aligned: bool = False,
    slopes: Tensor | None = None,
    rel_bias: Tensor | None = None,
) -> Tensor:
    """See the public function; `max_query` only sizes launches on a device."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    groups = kv_cache.shape[2], -1, 1
    by_query = sinks is not None and sinks.ndim == 2
    by_group = [
        None if x is None else x.view(groups) for x in (None if by_query else sinks, slopes)
    ]
    rule = Rule(scale, window, aligned, softcap, *by_group)
    cache = Rows(kv_cache, kv_params, q.shape[2])
    starts = query_start.tolist()
    for sequence, length in enumerate(kv_len.tolist()):
        rows = slice(starts[sequence], starts[sequence + 1])
        if rows.start < rows.stop:
            table = block_tables, slots[sequence : sequence + 1]
            queries = wide(q[rows])
            if sinks is not None and by_query:
                own = sinks[rows].unflatten(1, (kv_cache.shape[2], -1))
                rule = replace(rule, sinks=own.permute(1, 2, 0))
            if rel_bias is not None:
                grouped = rel_bias[rows].to(queries.dtype).unflatten(1, (kv_cache.shape[2], -1))
                rule = replace(rule, rel_bias=grouped.permute(1, 2, 0, 3))
            out[rows] = _attend(queries, cache, table, length, rule)
    return out


def _attend(
    q: Tensor,
    cache: Rows,
    table: tuple[Tensor, Tensor],
    length: int,
    rule: Rule,
) -> Tensor:
    """One sequence: q [n, Hq, D], tables (all, its slot [1]), its kv_len; sinks and slopes
    [Hkv, g, 1], perhaps sinks [Hkv, g, n], rel_bias [Hkv, g, n, E]."""
    count, heads, size = q.shape
    first = rule.first(length - count)
    seen = torch.arange(first, length, device=q.device)
    keys, values = gather(cache, table, seen[None], q.dtype)  # [1, Hkv, L, D]
    kv_heads = keys.shape[1]
    grouped = q.view(count, kv_heads, heads // kv_heads, size).permute(1, 2, 0, 3)
    shape = (kv_heads, heads // kv_heads, length - first, size)
    causal = count == length and not rule.window
    positions = torch.arange(length - count, length, device=q.device)
    biased = rule.slopes is not None or rule.rel_bias is not None
    distance = seen - positions[:, None] if biased else None
    mask = None
    if not causal and (count > 1 or rule.window):
        mask = _visible(range(length - count, length), seen, rule)
    keys, values = keys[0, :, None].expand(shape), values[0, :, None].expand(shape)
    out = attention(grouped, keys, values, mask, rule, causal, distance)
    return out.permute(2, 0, 1, 3).reshape(count, heads, size)


def _visible(positions: range, keys: Tensor, rule: Rule) -> Tensor:
    """Whether the queries at `positions` see the keys at positions `keys` [L]: [n, L]."""
    first = torch.tensor([rule.first(position) for position in positions], device=keys.device)
    last = torch.tensor(positions, device=keys.device)
    return (keys >= first[:, None]) & (keys <= last[:, None])
