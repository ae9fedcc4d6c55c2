"""The first half of a SwiGLU feed-forward layer: gate and up projections and the gate itself."""

from __future__ import annotations

from torch import Tensor

from ..checks import expect, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("gated_linear", reference.gated_linear, without="a tenth longer or more")


def gated_linear(x: Tensor, weight: Tensor) -> Tensor:
    """y = silu(x G^T) * (x U^T), where weight = [G; U].

    Args: x [m, k] any float, rows may be strided; weight [2 n, k] contiguous, of x's dtype, a
        constant as for `linear`.
    Returns: y [m, n], new and contiguous.
    Precision: float32 inside, one rounding at the end; where cuBLAS multiplies, one more between
        product and gate.
    Bytes moved: 2 n k elements of the weights, once; m (n + k) of x and y.
    Source: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202.
    """
    expect_rank("x", x, "m, k")
    expect_rows("x", x)
    expect_rank("weight", weight, "2n, k")
    expect("weight", weight, (weight.shape[0], x.shape[1]), (x.dtype,))
    if weight.shape[0] % 2:
        raise ValueError(f"weight has {weight.shape[0]} rows; expected gate rows, then as many up")
    return _OP.on(x)(x, weight)
