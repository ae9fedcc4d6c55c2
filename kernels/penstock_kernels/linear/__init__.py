"""A linear layer, fast where few rows meet large weights: the steps of decoding."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("linear", reference.linear, without="about a tenth longer up to 64 rows")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b.

    Args: x [m, k] any float, rows may be strided; weight [n, k] contiguous and bias [n], of x's
        dtype. `weight` is a constant: on CUDA the kernel may read it before the kernel that was
        launched just before it on the stream has ended.
    Returns: y [m, n], new and contiguous.
    Precision: float32 accumulation in an order that does not depend on timing, one rounding.
    Bytes moved: n k elements of the weights, once; m (n + k) of x and y.
    Up to 64 rows in 16 bits on CUDA a Triton kernel runs where it was measured to be faster,
    otherwise cuBLAS: see `plan`.
    """
    expect_rank("x", x, "m, k")
    expect_rows("x", x)
    expect_rank("weight", weight, "n, k")
    expect("weight", weight, (weight.shape[0], x.shape[1]), (x.dtype,))
    if bias is not None:
        expect("bias", bias, (weight.shape[0],), FLOATS)
    return _OP.on(x)(x, weight, bias)
