"""Root-mean-square normalisation, with the residual addition before it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("rms_norm", reference.rms_norm)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """y = x / sqrt(mean(x^2) + eps) * weight, row by row.

    Args: x [T, H] any float, rows may be strided; weight [H] of any float; residual [T, H] of x's
        dtype.
    Returns: y [T, H]; with a residual (y, sum), where sum = x + residual, rounded to x's dtype, is
        what y normalises. Both are new and contiguous.
    Precision: float32 inside, one rounding at the end.
    Bytes moved: 2 T H elements, with a residual 4 T H.
    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    expect_rank("x", x, "T, H")
    expect_rows("x", x)
    expect("weight", weight, (x.shape[1],), FLOATS)
    if residual is not None:
        expect("residual", residual, tuple(x.shape), (x.dtype,))
        expect_rows("residual", residual)
    return _OP.on(x)(x, weight, eps, residual)


class NormInput(NamedTuple):
    """What a normalisation works on, where a later op may do it on the way."""

    x: Tensor
    """[T, H]."""
    residual: Tensor | None
    """[T, H], added to x first; None where nothing came before."""
    scale: Tensor
    """[H]: the norm's weight."""
    eps: float
    """Added to the mean square."""

    def normed(self) -> tuple[Tensor, Tensor]:
        """(y, sum) as `rms_norm` gives them; the sum is x itself without a residual."""
        out = rms_norm(self.x, self.scale, self.eps, self.residual)
        return out if isinstance(out, tuple) else (out, self.x)
