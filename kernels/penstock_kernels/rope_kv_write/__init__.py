"""Rotary position embedding of queries and keys, and the write of keys and values to the cache."""

from __future__ import annotations

from torch import Tensor

from ..checks import INDEX, expect, expect_rotation
from ..op import Op
from . import reference

_OP = Op("rope_kv_write", reference.rope_kv_write, mutates=("q", "kv_cache", "kv_params"))


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
    """Rotates q in place; writes the rotated k, and v, to the cache. k and v stay as they are.
    Where both are None, nothing is written.

    With halves x = (a | b) of a head and (cos | sin) of its position, rotated x =
    (a cos - b sin | b cos + a sin).

    Args: q [T, Hq, D], k and v [T, Hkv, D] of one float dtype, rows of D contiguous, D even; they
        may be views of one fused projection. cos_sin [P, D] float32 (float64 with float64 q),
        cosines then sines; positions [T] int32 in 0..P; slot_mapping [T] int32, block *
        block_tokens + offset, or -1 for a token whose k and v are not written (padding);
        kv_cache [blocks, 2, Hkv, block_tokens, D] contiguous, of floats; start [1 or more] int32:
        tokens before start[0] are left alone (none if it is None). Slots are distinct.
        kv_params: scale and zero of each key and value, [blocks, 2, Hkv, block_tokens, 2] float16,
        contiguous; kv_cache is then uint8: D codes, or D / 2 bytes of two (kv_quantization.py).
    Precision: float32 inside, rounded once to the dtype of q or of the cache, where
        what is too large for fp8 becomes its largest number.
    Bytes moved: T (2 Hq + 4 Hkv) D elements, and T D cosines and sines.
    Source: Su et al., RoFormer, 2021, with the halves of a head paired as Llama's checkpoints are.
    """
    expect_rotation((q, k, v), cos_sin, (positions, slot_mapping), (kv_cache, kv_params))
    if start is not None:
        expect("start", start, (len(start),), INDEX)
    _OP.on(q)(q, k, v, cos_sin, positions, slot_mapping, kv_cache, start, kv_params)
