"""A linear layer, fast for few rows and large weights, as in decode steps."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_gated, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("linear", reference.linear, without="about a tenth longer up to 64 rows")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, gated: bool = False) -> Tensor:
    """y = x W^T + b, or silu(x G^T) * (x U^T).

    Args: x [m, k] any float, rows may be strided; weight [n, k] contiguous and bias [n], of x's
        dtype. `weight` is a constant: on CUDA the kernel may read it before the kernel that was
        launched just before it on the stream has ended. Gated, weight = [G; U], and no bias.
    Returns: y [m, n], or [m, n / 2] if gated, new and contiguous.
    Precision: float32 accumulation in an order that does not depend on timing, one rounding; a
        gated product is rounded once more before the gate if cuBLAS multiplies.
    Bytes moved: n k elements of the weights, once; m (n + k) of x and y.
    On CUDA, for up to 256 rows in 16 bits, a Triton kernel runs if it was measured to be faster,
    otherwise cuBLAS: see `plan`. A Hopper GPU has a kernel for gated products of many rows: see
    `tiling`.
    """
    expect_rank("x", x, "m, k")
    expect_rows("x", x)
    expect_rank("weight", weight, "n, k")
    expect("weight", weight, (weight.shape[0], x.shape[1]), (x.dtype,))
    if bias is not None:
        expect("bias", bias, (weight.shape[0],), FLOATS)
    if gated:
        expect_gated(weight, bias)
    return _OP.on(x)(x, weight, bias, gated)


def adds(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear` uses cuBLAS here, which can add x W^T to its output tensor."""
    if not x.is_cuda:
        return False
    try:
        from .triton import library  # CPU machines never need it
    except ImportError:  # without Triton, `linear` is its reference
        return True
    return library(x, weight)
