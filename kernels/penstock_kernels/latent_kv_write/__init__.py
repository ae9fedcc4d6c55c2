"""What multi-head latent attention does before it attends: rotation, and the write of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, INDEX, expect, expect_latent, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("latent_kv_write", reference.latent_kv_write, mutates=("out", "kv_cache"))


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
    """Puts rotated queries into `out`, and the row of each token into the cache.

    A row begins with (latent | key): rms_norm(kv[:, :C]) * scale, and kv[:, C:] rotated. With
    halves x = (a | b) of R dimensions and (cos | sin) of the position, rotated x = (a cos - b sin |
    b cos + a sin). `interleaved` pairs are neighbours (2i, 2i + 1); they are written as halves all
    the same, queries and keys alike, which changes no product of the two.

    Args: q [T, Hq, R] of a float dtype, the part of the queries that rotates, R even; kv [T, C + R]
        of q's dtype; both may be views with rows of their own. scale [C]: the norm's weight, any
        float; cos_sin [P, R] float32 (float64 with float64 q), cosines then sines; positions [T]
        int32 in 0..P; slot_mapping [T] int32, block * block_tokens + offset, or -1 for a token
        whose row is not written (padding); kv_cache [blocks, 1, 1, block_tokens, W] contiguous,
        of q's dtype, W >= C + R; out [T, Hq, C + R] of q's dtype, rows contiguous: its last R
        columns are written, the others left alone. Slots are distinct.
    Precision: float32 inside, rounded once.
    Bytes moved: T (2 Hq R + 2 (C + R)) elements, and T R cosines and sines.
    Source: DeepSeek-AI, DeepSeek-V2, 2024, section 2.1; Su et al., RoFormer, 2021.
    """
    expect_rank("q", q, "T, Hq, R")
    tokens, heads, rotated = q.shape
    expect("q", q, (tokens, heads, rotated), FLOATS)
    expect_rank("kv", kv, "T, C + R")
    size = kv.shape[1]
    expect_latent(kv_cache, q.dtype, size)
    if rotated % 2 or rotated >= size:
        raise ValueError(f"q has {rotated} dimensions of {size} in kv; expected fewer, even")
    expect("kv", kv, (tokens, size), (q.dtype,))
    expect("scale", scale, (size - rotated,), FLOATS)
    expect("cos_sin", cos_sin, (cos_sin.shape[0], rotated), (torch.float32, torch.float64))
    expect("positions", positions, (tokens,), INDEX)
    expect("slot_mapping", slot_mapping, (tokens,), INDEX)
    expect("out", out, (tokens, heads, size), (q.dtype,))
    for name, tensor in (("q", q), ("kv", kv), ("cos_sin", cos_sin), ("out", out)):
        expect_rows(name, tensor)
    places = cos_sin, positions, slot_mapping, kv_cache
    _OP.on(q)(q, kv, scale, eps, *places, out, interleaved)
