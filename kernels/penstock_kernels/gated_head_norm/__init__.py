"""Root-mean-square normalisation of each head, multiplied by SiLU or sigmoid of a gate."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_contiguous, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("gated_head_norm", reference.gated_head_norm)

ACTIVATIONS = tuple(reference.ACTIVATIONS)


def gated_head_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    eps: float,
    gate_first: bool = False,
    activation: str = "silu",
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight * act(gate), for each head of each token; with
    `gate_first`, x act(gate) is normalised.

    Args: x and gate [T, H, D] of one float dtype, tokens and heads may be strided; weight [D] of
        any float, which all heads share, or [H, D]; activation: "silu", z sigmoid(z), or
        "sigmoid".
    Returns: [T, H, D] of x's dtype, contiguous.
    Precision: float32 inside, one rounding at the end.
    Bytes moved: 3 T H D elements.
    Source: Sun et al., Retentive Network, 2023, section 2.2 (a norm of each head before a gate);
        Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; Dao and
        Gu, Transformers are SSMs (Mamba-2), 2024, section 7 (a gate before the norm); Kimi Team,
        Kimi Linear, 2025, section 4 (the sigmoid).
    """
    expect_rank("x", x, "T, H, D")
    expect("x", x, tuple(x.shape), FLOATS)
    expect("gate", gate, tuple(x.shape), (x.dtype,))
    expect("weight", weight, tuple(x.shape[3 - weight.dim() :]), FLOATS)
    expect_contiguous("weight", weight)
    expect_rows("x", x)
    expect_rows("gate", gate)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; expected one of {', '.join(ACTIVATIONS)}")
    return _OP.on(x)(x, gate, weight, eps, gate_first, activation)
