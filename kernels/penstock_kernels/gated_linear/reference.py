"""Reference of gated_linear in torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..shared import wide
from ..silu_mul.reference import silu_mul


def gated_linear(x: Tensor, weight: Tensor) -> Tensor:
    """See the public function."""
    return silu_mul(F.linear(wide(x), wide(weight))).to(x.dtype)
