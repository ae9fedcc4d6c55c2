"""Reference of head_norm in torch."""

from __future__ import annotations

from torch import Tensor

from ..rms_norm.reference import rms_norm


def head_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    """See the public function."""
    for heads, weight in ((q, q_weight), (k, k_weight)):
        normed = rms_norm(heads.reshape(-1, heads.shape[2]), weight, eps)
        assert isinstance(normed, Tensor)
        heads.copy_(normed.view(heads.shape))
