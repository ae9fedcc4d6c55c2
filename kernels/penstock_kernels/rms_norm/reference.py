"""Reference of rms_norm in torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import rms_norm as torch_rms_norm

from ..shared import wide


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """See the public function; the sum is rounded before it is normalised, as a layer stores it."""
    total = x if residual is None else x + residual
    inner = wide(total)
    normed = torch_rms_norm(inner, weight.shape, weight.to(inner.dtype), eps).to(x.dtype)
    return normed if residual is None else (normed, total)
