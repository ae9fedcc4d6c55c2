"""Triton kernel of latent_kv_write: one program per token, with all of its query heads."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import power_of_two


@triton.jit
def _write_row(
    q,
    kv,
    scale,
    eps,
    cos_sin,
    positions,
    slot_mapping,
    cache,
    out,
    q_strides,
    kv_stride,
    angle_stride,
    out_strides,
    heads,
    C: tl.constexpr,
    W: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    pair = tl.arange(0, PAIRS)
    exists = pair < HALF
    first, step = pair, HALF
    if INTERLEAVED:
        first, step = 2 * pair, 1
    # All loads before the first store, so that they are in flight together.
    slot = tl.load(slot_mapping + token)
    angles = cos_sin + tl.load(positions + token).to(tl.int64) * angle_stride
    cos = tl.load(angles + pair, exists, other=0)
    sin = tl.load(angles + HALF + pair, exists, other=0)
    queries = q + token * q_strides[0] + row * q_strides[1] + first[None, :]
    tile = (row < heads) & exists[None, :]
    a = tl.load(queries, tile, other=0).to(tl.float32)
    b = tl.load(queries + step, tile, other=0).to(tl.float32)
    source = kv + token * kv_stride
    key_a = tl.load(source + C + first, exists, other=0).to(tl.float32)
    key_b = tl.load(source + C + first + step, exists, other=0).to(tl.float32)
    column = tl.arange(0, COLUMNS)
    inside = column < C
    x = tl.load(source + column, inside, other=0).to(tl.float32)
    weight = tl.load(scale + column, inside, other=0).to(tl.float32)

    target = out + token * out_strides[0] + row * out_strides[1] + C + pair[None, :]
    tl.store(target, (a * cos - b * sin).to(out.dtype.element_ty), tile)
    tl.store(target + HALF, (b * cos + a * sin).to(out.dtype.element_ty), tile)
    if slot >= 0:
        place = cache + slot.to(tl.int64) * W
        normed = x * tl.rsqrt(tl.sum(x * x, 0) / C + eps) * weight
        element = cache.dtype.element_ty
        tl.store(place + column, normed.to(element), inside)
        tl.store(place + C + pair, (key_a * cos - key_b * sin).to(element), exists)
        tl.store(place + C + HALF + pair, (key_b * cos + key_a * sin).to(element), exists)


def latent_kv_write(
    q: Tensor,
    kv: Tensor,
    scale: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    out: Tensor,
    interleaved: bool = False,
) -> None:
    """See the public function."""
    tokens, heads, rotated = q.shape
    if not tokens:
        return
    _write_row[(tokens,)](
        q,
        kv,
        scale,
        eps,
        cos_sin,
        positions,
        slot_mapping,
        kv_cache,
        out,
        q.stride()[:2],
        kv.stride(0),
        cos_sin.stride(0),
        out.stride()[:2],
        heads,
        C=len(scale),
        W=kv_cache.shape[-1],
        HALF=rotated // 2,
        ROWS=power_of_two(heads),
        COLUMNS=power_of_two(len(scale)),
        PAIRS=power_of_two(rotated // 2),
        INTERLEAVED=interleaved,
        num_warps=4,
    )
