"""A linear layer with packed weights, of what a SiLU gate lets through."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from ..packed_linear import PackedWeight, expect_packed
from . import reference

_OP = Op("packed_act_linear", reference.packed_act_linear)


def packed_act_linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """y = (silu(G) * U) W^T + b, where x = (G | U).

    For many rows of float8: what multiplies rounds its rows first, and gates them on the way.

    Args: x [m, 2 k] float32, bfloat16 or float16, rows may be strided; weight, a matrix [n, k], and
        bias as for `packed_linear`.
    Returns: y [m, n] of x's dtype, new and contiguous.
    Precision: as `packed_linear`; silu(G) * U is rounded to x's dtype.
    Bytes moved: as `packed_linear`, and m k elements of x more.
    """
    expect_rank("x", x, "m, 2 k")
    expect_rows("x", x)
    expect_packed(weight)
    expect("x", x, (x.shape[0], 2 * weight.inputs), FLOATS)
    if bias is not None:
        expect("bias", bias, (weight.outputs,), FLOATS)
    return _OP.on(x)(x, weight, bias)
