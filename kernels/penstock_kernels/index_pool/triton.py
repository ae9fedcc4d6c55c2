"""Triton kernels of index_pool: one writes tokens, one the keys of pools."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import power_of_two


@triton.jit
def _write_token(
    k, gates, scale, bias, eps, slot_mapping, cache, k_stride, gate_stride,
    D: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        column = tl.arange(0, COLUMNS)
        inside = column < D
        gate = tl.load(gates + token * gate_stride + column, inside)
        x = tl.load(k + token * k_stride + column, inside, other=0).to(tl.float32)
        centred = tl.where(inside, x - tl.sum(x, 0) / D, 0.0)
        factor = tl.rsqrt(tl.sum(centred * centred, 0) / D + eps)
        weight = tl.load(scale + column, inside, other=0).to(tl.float32)
        key = centred * factor * weight + tl.load(bias + column, inside, other=0).to(tl.float32)
        place = cache + slot.to(tl.int64) * W + (W - 2 * D)
        tl.store(place + column, gate, inside)
        tl.store(place + D + column, key.to(cache.dtype.element_ty), inside)


@triton.jit
def _pool_tokens(
    offsets, slot_mapping, cache,
    P: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    slot = tl.load(slot_mapping + tl.program_id(0))
    if (slot >= 0) & (slot % P == P - 1):
        member = tl.arange(0, TOKENS)[:, None]
        column = tl.arange(0, COLUMNS)[None, :]
        inside = (member < P) & (column < D)
        last = cache + slot.to(tl.int64) * W + (W - 2 * D)
        place = last + (member - (P - 1)) * W + column
        logit = tl.load(place, inside, other=0).to(tl.float32)
        logit += tl.load(offsets + member * D + column, inside, other=0).to(tl.float32)
        logit = tl.where(member < P, logit, float("-inf"))
        weight = tl.exp(logit - tl.max(logit, 0)[None, :])
        key = tl.load(place + D, inside, other=0).to(tl.float32)
        pooled = tl.sum(weight * key, 0) / tl.sum(weight, 0)
        target = last + D + tl.arange(0, COLUMNS)
        tl.store(target, pooled.to(cache.dtype.element_ty), tl.arange(0, COLUMNS) < D)


def index_pool(
    k: Tensor,
    gates: Tensor,
    scale: Tensor,
    bias: Tensor,
    eps: float,
    offsets: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
) -> None:
    """See the public function."""
    tokens, size = k.shape
    if not tokens:
        return
    sizes = {"D": size, "W": kv_cache.shape[4], "COLUMNS": power_of_two(size)}
    strides = k.stride(0), gates.stride(0)
    _write_token[(tokens,)](
        *(k, gates, scale, bias, eps, slot_mapping, kv_cache, *strides), **sizes, num_warps=1
    )
    pool = len(offsets)
    _pool_tokens[(tokens,)](
        *(offsets, slot_mapping, kv_cache), P=pool, TOKENS=power_of_two(pool), **sizes, num_warps=4
    )
