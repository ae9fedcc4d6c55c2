"""Reference of act_mul in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn.functional import gelu, silu

from ..shared import wide

SLOPE = 1.702  # of the sigmoid of "clamped_swiglu"
LIMITS_FIRST = ("limited_silu", "clamped_swiglu")  # a limit is of the gate before its activation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "limited_silu": silu,
    "clamped_swiglu": lambda z: z * (SLOPE * z).sigmoid(),
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
}


def act_mul(x: Tensor, activation: str = "silu", limit: float = 0.0) -> Tensor:
    """See the public function."""
    gate, up = wide(x).chunk(2, dim=-1)
    if limit and activation in LIMITS_FIRST:
        gate = gate.clamp(max=limit)
    gate = ACTIVATIONS[activation](gate)
    if limit:
        gate, up = gate.clamp_(max=limit), up.clamp(-limit, limit)
    if activation == "clamped_swiglu":
        up = up + 1
    return gate.mul_(up).to(x.dtype)
