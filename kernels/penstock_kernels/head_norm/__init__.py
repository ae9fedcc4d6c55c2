"""Root-mean-square normalisation of each head of queries and keys, in place."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("head_norm", reference.head_norm, mutates=("q", "k"))


def head_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    """x = x / sqrt(mean(x^2) + eps) * weight, for each head x of each token, in place.

    Args: q [T, Hq, D] and k [T, Hkv, D] of one float dtype, tokens and heads may be strided;
        q_weight, k_weight [D] of any float, which all heads of their tensor share.
    Precision: float32 inside, one rounding at the end.
    Bytes moved: 2 T (Hq + Hkv) D elements.
    Source: Henry et al., Query-Key Normalization for Transformers, 2020; Zhang and Sennrich, Root
        Mean Square Layer Normalization, 2019.
    """
    expect_rank("q", q, "T, Hq, D")
    expect_rank("k", k, "T, Hkv, D")
    tokens, _, size = q.shape
    expect("k", k, (tokens, k.shape[1], size), (q.dtype,))
    for name, heads in (("q", q), ("k", k)):
        expect_rows(name, heads)
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        expect(name, weight, (size,), FLOATS)
    _OP.on(q)(q, k, q_weight, k_weight, eps)
