"""Triton kernel of rope_kv_write: one program per token and key head, with its query heads."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import power_of_two
from ..kv_quantization_triton import store_halves, stored_as


@triton.jit
def _rotate_token(
    q,
    k,
    v,
    cos_sin,
    positions,
    slot_mapping,
    cache,
    kv_params,
    start,
    q_strides,
    k_strides,
    v_strides,
    angle_stride,
    block_tokens,
    kv_heads,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BITS: tl.constexpr,
    LARGEST: tl.constexpr,
    FROM_START: tl.constexpr,
    WRITES: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    if FROM_START:  # noqa: SIM102
        if token < tl.load(start):
            return
    # All loads before the first store, so that they are in flight together.
    head = tl.program_id(1)
    column = tl.arange(0, COLUMNS)
    inside = column < HALF
    slot = tl.load(slot_mapping + token)
    angles = cos_sin + tl.load(positions + token).to(tl.int64) * angle_stride
    row = tl.arange(0, ROWS)[:, None]
    heads = q + token * q_strides[0] + (head * GROUP + row) * q_strides[1] + column[None, :]
    tile = (row < GROUP) & inside[None, :]
    a = tl.load(heads, tile, other=0).to(tl.float32)
    b = tl.load(heads + HALF, tile, other=0).to(tl.float32)
    if WRITES:
        source = k + token * k_strides[0] + head * k_strides[1] + column
        key_a = tl.load(source, inside, other=0).to(tl.float32)
        key_b = tl.load(source + HALF, inside, other=0).to(tl.float32)
        source = v + token * v_strides[0] + head * v_strides[1] + column
        value_a = tl.load(source, inside, other=0)
        value_b = tl.load(source + HALF, inside, other=0)
    cos = tl.load(angles + column, inside, other=0)
    sin = tl.load(angles + HALF + column, inside, other=0)

    tl.store(heads, (a * cos - b * sin).to(q.dtype.element_ty), tile)
    tl.store(heads + HALF, (b * cos + a * sin).to(q.dtype.element_ty), tile)
    if WRITES:  # noqa: SIM102
        if slot >= 0:
            block = (slot // block_tokens).to(tl.int64)
            key_row = (block * 2 * kv_heads + head) * block_tokens + slot % block_tokens
            value_row = key_row + kv_heads * block_tokens
            rotated_a, rotated_b = key_a * cos - key_b * sin, key_b * cos + key_a * sin
            store_halves(
                cache, kv_params, key_row, rotated_a, rotated_b, column, inside, HALF, BITS, LARGEST
            )
            store_halves(
                cache, kv_params, value_row, value_a, value_b, column, inside, HALF, BITS, LARGEST
            )


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
    """See the public function."""
    tokens, heads, size = q.shape
    kv_heads = kv_cache.shape[2]
    writes = k is not None and v is not None
    k, v = (q if tensor is None else tensor for tensor in (k, v))
    if tokens:
        _rotate_token[(tokens, kv_heads)](
            q,
            k,
            v,
            cos_sin,
            positions,
            slot_mapping,
            kv_cache,
            kv_cache if kv_params is None else kv_params,
            positions if start is None else start,
            q.stride()[:2],
            k.stride()[:2],
            v.stride()[:2],
            cos_sin.stride(0),
            kv_cache.shape[3],
            kv_heads,
            GROUP=heads // kv_heads,
            HALF=size // 2,
            ROWS=power_of_two(heads // kv_heads),
            COLUMNS=power_of_two(size // 2),
            **stored_as(kv_cache, size),
            FROM_START=start is not None,
            WRITES=writes,
            num_warps=1 if size <= 256 else 4,
        )
