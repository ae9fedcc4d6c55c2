"""The residual stream between layers, and what of it the ranks have yet to sum."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Residual(NamedTuple):
    """The sum of what all layers so far have put out: `total` + x.

    The norm that follows adds the two, and sums x over the ranks where it is partial. Everything
    else about tensor parallelism stays within a layer.
    """

    x: Tensor
    """[T, H], the last layer's output."""
    total: Tensor | None
    """[T, H], the sum before it, the same on every rank; None where x includes it."""
    partial: bool
    """Whether x is this rank's part of a sum over the ranks, not the same on every rank."""
