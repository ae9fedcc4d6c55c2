"""Activations of expert_mlp in Triton."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from ..act_mul.reference import SLOPE
from .experts import CAP, GATE_CAP, LIMIT, SILU_LIMIT, UP_CAP

MOST, STEEP = tl.constexpr(LIMIT), tl.constexpr(SLOPE)
SILU_MOST, CAPPED = tl.constexpr(SILU_LIMIT), tl.constexpr(CAP)
GATE_MOST, UP_MOST = tl.constexpr(GATE_CAP), tl.constexpr(UP_CAP)
TWICE_ROOT = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)


@triton.jit
def softcapped(x, CAP: tl.constexpr):
    """CAP tanh(x / CAP), which is off by a rounding of CAP at most."""
    return (1 - 2 / (1 + tl.exp(x * (2 / CAP)))) * CAP


@triton.jit
def activated(gate, up, ACTIVATION: tl.constexpr):
    """Float32 products of activated gates and ups: see `Activation`. Without a gate, the ups are
    `gate`."""
    if ACTIVATION == "relu_squared":
        gate = tl.maximum(gate, 0.0)
        return gate * gate
    elif ACTIVATION == "clamped_swiglu":  # noqa: RET505
        gate = tl.minimum(gate, MOST)
        up = tl.minimum(tl.maximum(up, -MOST), MOST)
        return gate * tl.sigmoid(gate * STEEP) * (up + 1.0)
    elif ACTIVATION == "gelu_tanh":
        return gate * tl.sigmoid((gate + 0.044715 * gate * gate * gate) * TWICE_ROOT) * up
    elif ACTIVATION == "capped_silu":
        up = tl.minimum(tl.maximum(up, -CAPPED), CAPPED)
        return tl.minimum(gate * tl.sigmoid(gate), CAPPED) * up
    elif ACTIVATION == "softcapped_silu":
        return softcapped(gate, GATE_MOST) * tl.sigmoid(gate) * softcapped(up, UP_MOST)
    else:
        if ACTIVATION == "limited_silu":
            gate = tl.minimum(gate, SILU_MOST)
            up = tl.minimum(tl.maximum(up, -SILU_MOST), SILU_MOST)
        return gate * tl.sigmoid(gate) * up
