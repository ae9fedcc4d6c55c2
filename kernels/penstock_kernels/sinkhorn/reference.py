"""Reference of sinkhorn in torch."""

from __future__ import annotations

from torch import Tensor


def sinkhorn(logits: Tensor, rounds: int, eps: float) -> Tensor:
    """See the public function."""
    matrix = logits.softmax(2).add_(eps)
    for after_first in range(rounds):
        if after_first:
            matrix /= matrix.sum(2, keepdim=True) + eps
        matrix /= matrix.sum(1, keepdim=True) + eps
    return matrix
