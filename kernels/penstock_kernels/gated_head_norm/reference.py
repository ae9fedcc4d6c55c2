"""Reference of gated_head_norm in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from ..shared import wide

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "sigmoid": torch.sigmoid}


def gated_head_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    eps: float,
    gate_first: bool = False,
    activation: str = "silu",
) -> Tensor:
    """See the public function."""
    opened = ACTIVATIONS[activation](wide(gate))
    heads = wide(x) * opened if gate_first else wide(x)
    normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
    scaled = normed * wide(weight)
    return (scaled if gate_first else scaled * opened).to(x.dtype).contiguous()
