"""Reference of act_mul in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn.functional import gelu, silu

from ..shared import wide

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
}


def act_mul(x: Tensor, activation: str = "silu") -> Tensor:
    """See the public function."""
    gate, up = wide(x).chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate).mul_(up).to(x.dtype)
