"""Argument checks of the public functions. Cheap: they run before every launch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .kv_quantization import FP8, PARAMS

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INDEX = (torch.int32,)
Qkv = tuple[Tensor, Tensor | None, Tensor | None]  # queries, keys and values


def expect(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    """Raises ValueError unless `tensor` has this shape and one of these dtypes."""
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {shape}")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {tensor.dtype}; expected {' or '.join(map(str, dtypes))}")


def expect_rank(name: str, tensor: Tensor, axes: str) -> None:
    """Raises ValueError unless `tensor` has as many dimensions as `axes` names, say "T, H"."""
    if tensor.dim() != axes.count(",") + 1:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected [{axes}]")


def expect_rows(name: str, tensor: Tensor) -> None:
    """Raises ValueError unless elements of the last dimension are next to each other."""
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name} has strides {tensor.stride()}; expected the last to be 1")


def expect_gated(weight: Tensor, bias: Tensor | None) -> None:
    """Raises ValueError unless `weight` has as many up as gate rows, and there is no bias."""
    if bias is not None or weight.shape[0] % 2:
        raise ValueError(
            f"gated weight has {weight.shape[0]} rows; expected as many up as gate rows, no bias"
        )


def expect_contiguous(name: str, tensor: Tensor) -> None:
    """Raises ValueError unless `tensor` is contiguous."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}; expected "
            "contiguous"
        )


def expect_latent(kv_cache: Tensor, dtype: torch.dtype, size: int) -> None:
    """Raises ValueError unless `kv_cache` holds one row of at least `size` elements of `dtype` per
    token."""
    expect_rank("kv_cache", kv_cache, "blocks, 1, 1, block_tokens, W")
    expect("kv_cache", kv_cache, (len(kv_cache), 1, 1, *kv_cache.shape[3:]), (dtype,))
    if kv_cache.shape[4] < size:
        raise ValueError(f"kv_cache has rows of {kv_cache.shape[4]}; expected at least {size}")
    expect_contiguous("kv_cache", kv_cache)


def expect_cache(kv_cache: Tensor) -> None:
    """Raises ValueError unless `kv_cache` is contiguous [blocks, 2, Hkv, block_tokens, D]."""
    expect_rank("kv_cache", kv_cache, "blocks, 2, Hkv, block_tokens, D")
    if kv_cache.shape[1] != 2 or not kv_cache.is_contiguous():
        raise ValueError(
            f"kv_cache has shape {tuple(kv_cache.shape)} and strides {kv_cache.stride()}; "
            "expected contiguous [blocks, 2, Hkv, block_tokens, D]"
        )


def expect_stored(size: int, kv_cache: Tensor, kv_params: Tensor | None) -> None:
    """Raises ValueError unless `kv_cache`, with `kv_params`, stores heads of `size`."""
    expect_cache(kv_cache)
    dtype, row = kv_cache.dtype, kv_cache.shape[4]
    if kv_params is None:
        if dtype not in (*FLOATS, *FP8):
            raise ValueError(f"kv_cache is {dtype} without kv_params; expected floats")
        return
    if dtype != torch.uint8 or row not in (size, size / 2):
        raise ValueError(
            f"kv_cache has rows of {row} {dtype} for heads of {size}; with kv_params, expected "
            f"{size} or {size // 2} torch.uint8"
        )
    expect("kv_params", kv_params, (*kv_cache.shape[:4], 2), (PARAMS,))
    expect_contiguous("kv_params", kv_params)


def expect_out(q: Tensor, out: Tensor | None) -> None:
    """Raises ValueError unless `out`, if there is one, is contiguous and like q."""
    if out is not None:
        expect("out", out, tuple(q.shape), (q.dtype,))
        expect_contiguous("out", out)


def expect_rotation(
    qkv: Qkv,
    cos_sin: Tensor,
    places: tuple[Tensor, Tensor],
    stored: tuple[Tensor, Tensor | None],
) -> None:
    """Raises ValueError unless these fit together. There is a key if and only if there is a value.

    `places` are (positions, slot_mapping), `stored` (kv_cache, kv_params).
    """
    q, k, v = qkv
    kv_cache, kv_params = stored
    expect_rank("q", q, "T, Hq, D")
    tokens, _, size = q.shape
    expect_stored(size, kv_cache, kv_params)
    stored_size = kv_cache.shape[4] if kv_params is None else size
    expect("q", q, (tokens, q.shape[1], stored_size), FLOATS)
    if (k is None) != (v is None):
        raise ValueError("there is a key without a value, or a value without a key")
    for name, tensor in (("k", k), ("v", v)):
        if tensor is not None:
            expect(name, tensor, (tokens, kv_cache.shape[2], stored_size), (q.dtype,))
            expect_rows(name, tensor)
    expect("cos_sin", cos_sin, (cos_sin.shape[0], size), (torch.float32, torch.float64))
    expect("positions", places[0], (tokens,), INDEX)
    expect("slot_mapping", places[1], (tokens,), INDEX)
    expect_rows("q", q)
    expect_rows("cos_sin", cos_sin)


def expect_attention(
    q: Tensor,
    stored: tuple[Tensor, Tensor | None],
    tables: tuple[Tensor, Tensor],
    kv_len: Tensor,
) -> None:
    """Raises ValueError unless these fit together.

    `stored` are (kv_cache, kv_params), `tables` (block_tables, slots).
    """
    kv_cache, kv_params = stored
    expect_rank("q", q, "T, Hq, D")
    expect_rows("q", q)
    expect_stored(q.shape[2], kv_cache, kv_params)
    heads, kv_heads = q.shape[1], kv_cache.shape[2]
    size = kv_cache.shape[4] if kv_params is None else q.shape[2]
    if q.shape[2] != size or heads % kv_heads:
        raise ValueError(
            f"q has {heads} heads of {q.shape[2]}; the cache has {kv_heads} heads of "
            f"{size}: sizes must be equal and {heads} a multiple of {kv_heads}"
        )
    if q.dtype not in FLOATS:
        raise ValueError(f"q is {q.dtype}; expected a float")
    expect_tables(tables, kv_len)


def expect_tables(tables: tuple[Tensor, Tensor], kv_len: Tensor) -> None:
    """Raises ValueError unless `tables` (block_tables, slots) fit the sequences of `kv_len`."""
    block_tables, slots = tables
    expect_rank("block_tables", block_tables, "N, B")
    expect("block_tables", block_tables, tuple(block_tables.shape), INDEX)
    expect_rank("slots", slots, "S")
    expect("slots", slots, tuple(slots.shape), INDEX)
    expect("kv_len", kv_len, tuple(slots.shape), INDEX)


def expect_queries(q: Tensor, query_start: Tensor | None, kv_len: Tensor) -> None:
    """Raises ValueError unless `query_start` fits the sequences of `kv_len`; None: one row of `q`
    for each."""
    if query_start is not None:
        expect("query_start", query_start, (len(kv_len) + 1,), INDEX)
    elif len(q) != len(kv_len):
        raise ValueError(f"q has {len(q)} rows for {len(kv_len)} sequences; expected one each")


def expect_rule(q: Tensor, window: int, softcap: float, sinks: Tensor | None) -> None:
    """Raises ValueError unless these can shape attention's scores."""
    if window < 0:
        raise ValueError(f"window is {window}; expected 0 (unlimited) or more")
    if not 0 <= softcap < math.inf:
        raise ValueError(f"softcap is {softcap}; expected 0 (none) or more")
    if sinks is not None and sinks.ndim == 2:
        expect("sinks", sinks, tuple(q.shape[:2]), (torch.float32, torch.float64))
        expect_contiguous("sinks", sinks)
    else:
        _expect_of_heads("sinks", sinks, q.shape[1])


def expect_bias(q: Tensor, slopes: Tensor | None, rel_bias: Tensor | None) -> None:
    """Raises ValueError unless one of these, or none, can be added to the scores of `q`."""
    _expect_of_heads("slopes", slopes, q.shape[1])
    if rel_bias is None:
        return
    if slopes is not None:
        raise ValueError("there are slopes and rel_bias; expected one of them at most")
    expect_rank("rel_bias", rel_bias, "T, Hq, E")
    expect("rel_bias", rel_bias, (*q.shape[:2], max(rel_bias.shape[2], 1)), FLOATS)
    expect_contiguous("rel_bias", rel_bias)


def _expect_of_heads(name: str, numbers: Tensor | None, heads: int) -> None:
    if numbers is not None:
        expect(name, numbers, (heads,), (torch.float32, torch.float64))
        expect_rows(name, numbers)
