"""The ops, implemented by the extension's kernels. The public functions check the arguments.

Each row of a tensor [T, ...] must be contiguous, as all of the worker's are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from penstock_kernels.op import OPS
from torch import Tensor

from penstock._core import cpu

P = ParamSpec("P")
R = TypeVar("R")


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """The op; with a weight of another dtype than x, its reference."""
    if weight.dtype != x.dtype:
        normed: Tensor | tuple[Tensor, Tensor] = OPS["rms_norm"].reference(x, weight, eps, residual)
        return normed
    out = torch.empty(x.shape, dtype=x.dtype)
    if residual is None:
        cpu.rms_norm(x, weight, eps, None, out)
        return out
    total = torch.empty(x.shape, dtype=x.dtype)
    cpu.rms_norm(x, weight, eps, (residual, total), out)
    return out, total


def head_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    """The op, by the kernel of rms_norm on copies whose heads are rows."""
    for heads, weight in ((q, q_weight), (k, k_weight)):
        rows = torch.empty(heads.shape, dtype=heads.dtype)
        rows.copy_(heads)
        normed = rms_norm(rows.view(-1, heads.shape[2]), weight, eps)
        heads.copy_(cast("Tensor", normed).view(heads.shape))


def rope_kv_write(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    start: Tensor | None = None,
    kv_params: Tensor | None = None,
) -> None:
    """The op; with a cache of another dtype than q, or queries alone, its reference."""
    if kv_cache.dtype != q.dtype or k is None or v is None:
        _reference(rope_kv_write)(
            q, k, v, cos_sin, positions, slot_mapping, kv_cache, start, kv_params
        )
        return
    rows = slice(0 if start is None else int(start[0]), None)
    places = (cos_sin, positions[rows]), (slot_mapping[rows], None)
    cpu.rope_kv_write(q[rows], k[rows], v[rows], *places, kv_cache)


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
    """The op, with q rotated in place; with a soft cap, sinks, aligned windows, biases or a
    cache of another dtype, its reference."""
    biases = slopes if rel_bias is None else rel_bias
    if _bends(softcap, sinks, aligned and window > 0, biases) or kv_cache.dtype != q.dtype:
        places = cos_sin, positions, slot_mapping, kv_cache, block_tables, slots, kv_len
        return _reference(paged_decode_attention)(
            q, k, v, *places, scale, window, out, softcap, sinks, kv_params, aligned, slopes,
            rel_bias,
        )  # fmt: skip
    if k is None or v is None:
        q = q.clone()  # padding may be rows of chunks, which stay as they are
        _reference(rope_kv_write)(q, k, v, cos_sin, positions, slot_mapping, kv_cache)
    else:
        cpu.rope_kv_write(q, k, v, (cos_sin, positions), (slot_mapping, kv_len), kv_cache)
    return _attention(q, kv_cache, (block_tables, slots, None, kv_len), (scale, window), out)


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
    """The op, which does not need `max_query`; with a soft cap, sinks, aligned windows, biases or
    a cache of another dtype, its reference."""
    sequences = block_tables, slots, query_start, kv_len
    biases = slopes if rel_bias is None else rel_bias
    if _bends(softcap, sinks, aligned and window > 0, biases) or kv_cache.dtype != q.dtype:
        return _reference(paged_prefill_attention)(
            q, kv_cache, *sequences, scale, window,
            max_query=max_query, out=out, softcap=softcap, sinks=sinks, kv_params=kv_params,
            aligned=aligned, slopes=slopes, rel_bias=rel_bias,
        )  # fmt: skip
    return _attention(q, kv_cache, sequences, (scale, window), out)


def _bends(softcap: float, sinks: Tensor | None, aligned: bool, biases: Tensor | None) -> bool:
    """Whether scores or masks are not those that the kernel knows."""
    return bool(softcap) or sinks is not None or aligned or biases is not None


def _attention(
    q: Tensor,
    kv_cache: Tensor,
    sequences: tuple[Tensor, Tensor, Tensor | None, Tensor],
    rule: tuple[float, int],
    out: Tensor | None,
) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype) if out is None else out
    cpu.paged_attention(q, kv_cache, sequences, (*rule, torch.get_num_threads()), out)
    return out


def act_mul(x: Tensor, activation: str = "silu", limit: float = 0.0) -> Tensor:
    """The op, for SiLU without a limit; otherwise its reference."""
    if activation != "silu" or limit:
        return _reference(act_mul)(x, activation, limit)
    out = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype)
    cpu.silu_mul(x, out)
    return out


def sample(
    logits: Tensor,
    slots: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
    min_p: Tensor | None = None,
    typical_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The op, where all rows are greedy; otherwise its reference."""
    ids = torch.empty(len(logits), dtype=torch.int64)
    logprobs = torch.empty(len(logits), dtype=torch.float32)
    if cpu.greedy(logits, temperature.index_select(0, slots), ids, logprobs):
        return ids, logprobs
    return _reference(sample)(
        logits, slots, temperature, top_k, top_p, seed, position, min_p, typical_p
    )


def _reference(kernel: Callable[P, R]) -> Callable[P, R]:
    """Returns the reference of the op that `kernel` implements, for cases that it does not
    support."""
    return cast("Callable[P, R]", OPS[kernel.__name__].reference)


KERNELS: tuple[Callable[..., Any], ...] = (
    head_norm,
    rms_norm,
    rope_kv_write,
    paged_decode_attention,
    paged_prefill_attention,
    act_mul,
    sample,
)
