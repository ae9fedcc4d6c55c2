"""The gate of a feed-forward layer: an activation of one half, times the other."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("act_mul", reference.act_mul)

ACTIVATIONS = tuple(reference.ACTIVATIONS)


def act_mul(x: Tensor, activation: str = "silu", limit: float = 0.0) -> Tensor:
    """y = act(gate) * up, where x = (gate | up). With a limit, act(gate) is at most that, and up is
    from -limit to limit; with "limited_silu" and "clamped_swiglu", gate is at most the limit,
    before it is activated. With "clamped_swiglu", y = act(gate) * (up + 1).

    Args: x [T, 2 I] any float, rows may be strided; activation: "silu", z / (1 + exp(-z));
        "limited_silu", the same; "clamped_swiglu", z / (1 + exp(-1.702 z)); "gelu", z (1 + erf(z /
        sqrt 2)) / 2; "gelu_tanh", its approximation z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) /
        2; limit: 0 = none.
    Returns: [T, I] of x's dtype, contiguous.
    Precision: float32 inside, one rounding at the end.
    Bytes moved: 3 T I elements.
    Source: Shazeer, GLU Variants Improve Transformer, 2020; Hendrycks and Gimpel, Gaussian Error
        Linear Units, 2016.
    """
    expect_rank("x", x, "T, 2 I")
    expect_rows("x", x)
    expect("x", x, (x.shape[0], x.shape[1] // 2 * 2), FLOATS)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; expected one of {', '.join(ACTIVATIONS)}")
    if limit < 0:
        raise ValueError(f"limit is {limit}; expected at least 0")
    return _OP.on(x)(x, activation, limit)
