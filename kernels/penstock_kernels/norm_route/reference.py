"""Reference of norm_route in torch."""

from __future__ import annotations

from torch import Tensor

from ..linear.reference import linear
from ..rms_norm.reference import rms_norm
from ..route_experts.reference import route_experts
from ..route_experts.routing import Routing
from ..shared import wide


def norm_route(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    correction: Tensor | None,
    routing: Routing,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See the public function."""
    total = x if residual is None else x + residual
    normed = rms_norm(total, scale, eps)
    assert isinstance(normed, Tensor)
    logits = linear(normed.to(weight.dtype), weight, bias)
    ids, weights = route_experts(wide(logits), correction, routing)
    return normed, total, ids, weights
