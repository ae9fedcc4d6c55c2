"""Triton kernel of index_write: one program per token, with all of its index heads."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import power_of_two


@triton.jit
def _normed(source, scale, bias, at, exists, mean, factor):
    """Elements `at` of the normalised key."""
    x = tl.load(source + at, exists, other=0).to(tl.float32)
    weight = tl.load(scale + at, exists, other=0).to(tl.float32)
    return (x - mean) * factor * weight + tl.load(bias + at, exists, other=0).to(tl.float32)


@triton.jit
def _write_key(
    q, k, scale, bias, eps, cos_sin, positions, slot_mapping, cache, q_strides, k_stride,
    angle_stride, heads,
    D: tl.constexpr, W: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, PAIRS)
    exists = pair < HALF
    first, step = FIRST + pair, HALF
    if INTERLEAVED:
        first, step = FIRST + 2 * pair, 1
    angles = cos_sin + tl.load(positions + token).to(tl.int64) * angle_stride
    cos = tl.load(angles + pair, exists, other=0)
    sin = tl.load(angles + HALF + pair, exists, other=0)
    # A pair stays in its places: another thread may still read any other ones.
    row = tl.arange(0, ROWS)[:, None]
    queries = q + token * q_strides[0] + row * q_strides[1] + first[None, :]
    tile = (row < heads) & exists[None, :]
    a = tl.load(queries, tile, other=0).to(tl.float32)
    b = tl.load(queries + step, tile, other=0).to(tl.float32)
    tl.store(queries, (a * cos - b * sin).to(q.dtype.element_ty), tile)
    tl.store(queries + step, (b * cos + a * sin).to(q.dtype.element_ty), tile)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        source = k + token * k_stride
        column = tl.arange(0, COLUMNS)
        inside = column < D
        x = tl.load(source + column, inside, other=0).to(tl.float32)
        mean = tl.sum(x, 0) / D
        centred = tl.where(inside, x - mean, 0.0)
        factor = tl.rsqrt(tl.sum(centred * centred, 0) / D + eps)
        place = cache + slot.to(tl.int64) * W + (W - D)
        element = cache.dtype.element_ty
        still = inside & ((column < FIRST) | (column >= FIRST + 2 * HALF))
        kept = _normed(source, scale, bias, column, still, mean, factor)
        tl.store(place + column, kept.to(element), still)
        key_a = _normed(source, scale, bias, first, exists, mean, factor)
        key_b = _normed(source, scale, bias, first + step, exists, mean, factor)
        tl.store(place + first, (key_a * cos - key_b * sin).to(element), exists)
        tl.store(place + first + step, (key_b * cos + key_a * sin).to(element), exists)


def index_write(
    q: Tensor,
    k: Tensor,
    scale: Tensor,
    bias: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    interleaved: bool = False,
    at_end: bool = False,
) -> None:
    """See the public function."""
    tokens, heads, size = q.shape
    if not tokens:
        return
    half = cos_sin.shape[1] // 2
    _write_key[(tokens,)](
        q,
        k,
        scale,
        bias,
        eps,
        cos_sin,
        positions,
        slot_mapping,
        kv_cache,
        q.stride()[:2],
        k.stride(0),
        cos_sin.stride(0),
        heads,
        D=size,
        W=kv_cache.shape[-1],
        HALF=half,
        ROWS=power_of_two(heads),
        COLUMNS=power_of_two(size),
        PAIRS=power_of_two(half),
        INTERLEAVED=interleaved,
        FIRST=size - 2 * half if at_end else 0,
        num_warps=4,
    )
