"""A linear layer of a normalised sum: how every half of a transformer's block begins."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_gated, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("norm_linear", reference.norm_linear, without="a tenth longer or more up to 64 rows")


def norm_linear(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    gated: bool = False,
) -> tuple[Tensor, Tensor]:
    """total = x + residual; z = rms_norm(total) * scale; y = z W^T + b, or silu(z G^T) * (z U^T).

    Args: x and residual [m, k] any float, rows may be strided; scale [k], weight [n, k]
        contiguous and bias [n], of x's dtype. Gated, weight = [G; U] and there is no bias. Weights
        are constants as for `linear`.
    Returns: (y [m, n], or [m, n / 2] if gated; total [m, k], x itself without a residual).
    Precision: float32 inside; total and z are rounded to x's dtype as `rms_norm` rounds them. A
        gated product is rounded once more before the gate where cuBLAS multiplies.
    Bytes moved: the weights, once; m (n + 3 k) elements of the others.
    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; Shazeer, GLU Variants
        Improve Transformer, arXiv:2002.05202.
    """
    expect_rank("x", x, "m, k")
    expect_rows("x", x)
    if residual is not None:
        expect("residual", residual, tuple(x.shape), (x.dtype,))
        expect_rows("residual", residual)
    expect("scale", scale, (x.shape[1],), FLOATS)
    expect_rank("weight", weight, "n, k")
    expect("weight", weight, (weight.shape[0], x.shape[1]), (x.dtype,))
    if bias is not None:
        expect("bias", bias, (weight.shape[0],), FLOATS)
    if gated:
        expect_gated(weight, bias)
    return _OP.on(x)(x, residual, scale, eps, weight, bias, gated)
