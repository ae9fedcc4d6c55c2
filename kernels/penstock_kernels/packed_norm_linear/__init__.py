"""A linear layer with packed weights, of a normalised sum."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from ..packed_linear import PackedWeight, expect_product
from . import reference

_OP = Op("packed_norm_linear", reference.packed_norm_linear)


def packed_norm_linear(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    weight: PackedWeight,
    bias: Tensor | None = None,
    gated: bool = False,
) -> tuple[Tensor, Tensor]:
    """total = x + residual; z = rms_norm(total) * scale; y = z W^T + b, or silu(z G^T) * (z U^T).

    Args: x and residual [m, k] any float, rows may be strided; scale [k] any float; weight, bias
        and gated as for `packed_linear`.
    Returns: (y [m, n], or [m, n / 2] if gated; total [m, k], x itself without a residual).
    Precision: as `packed_linear`; total and z are rounded to x's dtype as `rms_norm` rounds them.
    Bytes moved: as `packed_linear`, and 3 m k elements.
    """
    expect_rank("x", x, "m, k")
    expect_rows("x", x)
    if residual is not None:
        expect("residual", residual, tuple(x.shape), (x.dtype,))
        expect_rows("residual", residual)
    expect("scale", scale, (x.shape[1],), FLOATS)
    expect_product(x, weight, bias, gated)
    return _OP.on(x)(x, residual, scale, eps, weight, bias, gated)
