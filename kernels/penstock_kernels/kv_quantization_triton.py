"""What Triton kernels share to store keys and values in fewer bits: see kv_quantization.py.

BITS is 8 or 4 for codes, 0 for floats. LARGEST is fp8's largest number, 0 for other floats.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kv_quantization import FP8, MOST, bits_of

_MOST = tl.constexpr(MOST)
# Added and subtracted, it rounds a small float32 to an integer, half to even.
_ROUND = tl.constexpr(1.5 * 2**23)


def stored_as(kv_cache: Tensor, size: int) -> dict[str, float]:
    """Returns BITS and LARGEST of a cache of heads of `size`."""
    largest = torch.finfo(kv_cache.dtype).max if kv_cache.dtype in FP8 else 0.0
    return {"BITS": bits_of(kv_cache, size), "LARGEST": largest}


@triton.jit
def saturated(x, kind: tl.constexpr, LARGEST: tl.constexpr):
    """Returns x in the float `kind`, limited to LARGEST if that is not 0."""
    if LARGEST > 0:
        x = tl.minimum(tl.maximum(x.to(tl.float32), -LARGEST), LARGEST)
    return x.to(kind)


@triton.jit
def parameters(low, high, BITS: tl.constexpr):
    """Returns (scale, zero) in float16 of elements from `low` to `high`, in float32."""
    LEVELS: tl.constexpr = (1 << BITS) - 1
    zero = tl.minimum(tl.maximum(low, -_MOST), _MOST).to(tl.float16)
    scale = tl.minimum((high - zero.to(tl.float32)) / LEVELS, _MOST).to(tl.float16)
    return tl.where(scale.to(tl.float32) <= 0, 1.0, scale.to(tl.float32)).to(tl.float16), zero


@triton.jit
def codes(x, scale, zero, BITS: tl.constexpr):
    """Returns the codes, uint8, of x float32, rounded half to even."""
    LEVELS: tl.constexpr = (1 << BITS) - 1
    level = (x - zero.to(tl.float32)) / scale.to(tl.float32)
    level = tl.minimum(tl.maximum(level, 0.0), LEVELS)
    return (level + _ROUND - _ROUND).to(tl.uint8)


@triton.jit
def load_rows(
    cache, kv_params, row, column, rows, columns,
    MASKED: tl.constexpr, BITS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Returns elements `column` of the keys or values in rows `row`, which broadcast to a tile.

    Floats come as they are stored, codes as float32. `columns` guards columns, and `rows` rows if
    MASKED. What they exclude is 0, except columns of quantized rows.
    """
    tile = columns
    if MASKED:
        tile = columns & rows
    if BITS == 0:
        return tl.load(cache + row * D + column, tile, other=0.0)
    else:  # noqa: RET505
        if BITS == 8:
            code = tl.load(cache + row * D + column, tile, other=0)
        else:
            HALF: tl.constexpr = D // 2
            code = tl.load(cache + row * HALF + column % HALF, tile, other=0)
            code = (code >> tl.where(column < HALF, 0, 4).to(tl.uint8)) & 15
        if MASKED:
            scale = tl.load(kv_params + row * 2, rows, other=0.0)
            zero = tl.load(kv_params + row * 2 + 1, rows, other=0.0)
        else:
            scale = tl.load(kv_params + row * 2)
            zero = tl.load(kv_params + row * 2 + 1)
        return code.to(tl.float32) * scale.to(tl.float32) + zero.to(tl.float32)


@triton.jit
def store_halves(
    cache, kv_params, row, a, b, column, inside,
    HALF: tl.constexpr, BITS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Stores a key or value in row `row`: the elements `column` of its first and second half."""
    if BITS == 0:
        kind: tl.constexpr = cache.dtype.element_ty
        place = cache + row * HALF * 2 + column
        tl.store(place, saturated(a, kind, LARGEST), inside)
        tl.store(place + HALF, saturated(b, kind, LARGEST), inside)
    else:
        a, b = a.to(tl.float32), b.to(tl.float32)
        low = tl.min(tl.where(inside, tl.minimum(a, b), float("inf")), 0)
        high = tl.max(tl.where(inside, tl.maximum(a, b), float("-inf")), 0)
        scale, zero = parameters(low, high, BITS)
        tl.store(kv_params + row * 2, scale)
        tl.store(kv_params + row * 2 + 1, zero)
        a, b = codes(a, scale, zero, BITS), codes(b, scale, zero, BITS)
        if BITS == 8:
            place = cache + row * HALF * 2 + column
            tl.store(place, a, inside)
            tl.store(place + HALF, b, inside)
        else:
            tl.store(cache + row * HALF + column, a | b << 4, inside)
