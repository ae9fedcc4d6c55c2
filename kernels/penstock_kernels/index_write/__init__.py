"""What the indexer of sparse attention does before it scores: rotation, and the write of a key."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, INDEX, expect, expect_latent, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("index_write", reference.index_write, mutates=("q", "kv_cache"))


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
    """Rotates index queries in place, and puts the index key of each token into the cache.

    A key is layer_norm(k) * scale + bias. Of it and of each query, the first R dimensions, or the
    last ones if `at_end`, rotate in pairs: (a, b) becomes (a cos - b sin, b cos + a sin) in the
    places of a and b. Pairs are (i, i + R / 2) of these, or neighbours (2i, 2i + 1) if
    `interleaved`.

    Args: q [T, H, D] of a float dtype; k [T, D] of q's dtype; both may be views with rows of their
        own. scale and bias [D], any float; cos_sin [P, R] float32 (float64 with float64 q), cosines
        then sines, R even and at most D; positions [T] int32 in 0..P; slot_mapping [T] int32, block
        * block_tokens + offset, or -1 for a token whose key is not written (padding); kv_cache
        [blocks, 1, 1, block_tokens, W] contiguous, of q's dtype: the last D columns of a token's
        row are written, the others left alone. Slots are distinct.
    Precision: float32 inside, rounded once.
    Bytes moved: T (2 H R + 2 D) elements, and T R cosines and sines.
    Source: DeepSeek-AI, DeepSeek-V3.2-Exp, 2025, section 2.
    """
    expect_rank("q", q, "T, H, D")
    tokens, heads, size = q.shape
    expect("q", q, (tokens, heads, size), FLOATS)
    expect("k", k, (tokens, size), (q.dtype,))
    expect("scale", scale, (size,), FLOATS)
    expect("bias", bias, (size,), FLOATS)
    expect_rank("cos_sin", cos_sin, "P, R")
    rotated = cos_sin.shape[1]
    expect("cos_sin", cos_sin, tuple(cos_sin.shape), (torch.float32, torch.float64))
    if rotated % 2 or rotated > size:
        raise ValueError(f"cos_sin is for {rotated} dimensions of {size}; expected at most, even")
    expect("positions", positions, (tokens,), INDEX)
    expect("slot_mapping", slot_mapping, (tokens,), INDEX)
    expect_latent(kv_cache, q.dtype, size)
    for name, tensor in (("q", q), ("k", k), ("cos_sin", cos_sin)):
        expect_rows(name, tensor)
    places = cos_sin, positions, slot_mapping, kv_cache
    _OP.on(q)(q, k, scale, bias, eps, *places, interleaved, at_end)
