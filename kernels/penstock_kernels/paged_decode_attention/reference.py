"""Reference of paged_decode_attention in torch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..kv_quantization import Rows
from ..rope_kv_write.reference import rope_kv_write
from ..shared import Rule, attention, gather, wide

# Sequences are taken in groups whose gathered keys and values fit a CPU's cache; larger
# allocations also go back to the operating system each time, and fault their pages in again.
GROUP_ELEMENTS = 1 << 20


def paged_decode_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    kv_len: Tensor,
    scale: float,
    window: int = 0,
    out: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    kv_params: Tensor | None = None,
    aligned: bool = False,
    slopes: Tensor | None = None,
    rel_bias: Tensor | None = None,
) -> Tensor:
    """See the public function."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    live = kv_len > 0
    if not bool(live.all()):
        own = q[live], None if k is None else k[live], None if v is None else v[live]
        places = positions[live], slot_mapping[live]
        tables, lengths = (block_tables, slots[live]), kv_len[live]
        out.zero_()[live] = paged_decode_attention(
            *own, cos_sin, *places, kv_cache, *tables, lengths, scale, window, None, softcap,
            sinks[live] if sinks is not None and sinks.ndim == 2 else sinks, kv_params, aligned,
            slopes, None if rel_bias is None else rel_bias[live],
        )  # fmt: skip
        return out
    rope_kv_write(q, k, v, cos_sin, positions, slot_mapping, kv_cache, None, kv_params)
    by_group = [
        None if x is None else x.unflatten(-1, (kv_cache.shape[2], -1)) for x in (sinks, slopes)
    ]
    rule = Rule(scale, window, aligned, softcap, *by_group)
    if rel_bias is not None:
        grouped = wide(rel_bias).unflatten(1, (kv_cache.shape[2], -1))
        rule = replace(rule, rel_bias=grouped)
    cache = Rows(kv_cache, kv_params, q.shape[2])
    return _attend_rows(q, cache, (block_tables, slots), kv_len, rule, out)


def _attend_rows(
    q: Tensor,
    cache: Rows,
    tables: tuple[Tensor, Tensor],
    kv_len: Tensor,
    rule: Rule,
    out: Tensor,
) -> Tensor:
    """Rows that all have keys, in groups, into `out`; sinks and slopes are [Hkv, Hq / Hkv],
    perhaps sinks [S, Hkv, Hq / Hkv], rel_bias [S, Hkv, Hq / Hkv, E]."""
    window = rule.window
    lengths: list[int] = kv_len.tolist()
    longest = max(lengths, default=0)
    per_sequence = 2 * cache.kv_cache.shape[2] * cache.size * min(longest, window or longest)
    group = max(1, GROUP_ELEMENTS // max(per_sequence, 1))
    for start in range(0, len(lengths), group):
        rows = slice(start, start + group)
        visible = [length - rule.first(length - 1) for length in lengths[rows]]
        some = tables[0], tables[1][rows]
        own = rule if rule.rel_bias is None else replace(rule, rel_bias=rule.rel_bias[rows])
        if rule.sinks is not None and rule.sinks.ndim == 3:
            own = replace(own, sinks=rule.sinks[rows])
        out[rows] = _attend(q[rows], cache, some, (kv_len[rows], visible), own)
    return out


def _attend(
    q: Tensor,
    cache: Rows,
    tables: tuple[Tensor, Tensor],
    lengths: tuple[Tensor, list[int]],
    rule: Rule,
) -> Tensor:
    """A group: q [s, Hq, D], tables (all, slots [s]), (kv_len [s], keys each query sees)."""
    kv_len, visible = lengths
    span = max(visible)
    # Row by row the last `span` positions; what lies before the first visible key is masked and
    # stands in as the row's own last key, so that only the row's own data is ever touched.
    positions = kv_len.long()[:, None] + torch.arange(-span, 0, device=q.device)
    mask = None
    if min(visible) < span:
        seen = torch.tensor(visible, device=q.device)[:, None]
        hidden = torch.arange(span, 0, -1, device=q.device) > seen
        positions = torch.where(hidden, kv_len.long()[:, None] - 1, positions)
        mask = ~hidden[:, None, None]
    queries = wide(q)
    keys, values = gather(cache, tables, positions, queries.dtype)
    grouped = queries.reshape(len(q), keys.shape[1], -1, q.shape[2])  # a group's heads as queries
    distance = torch.arange(1 - span, 1, device=q.device)[None]
    out = attention(grouped, keys, values, mask, rule, distance=distance)
    return out.reshape(q.shape).to(q.dtype)
