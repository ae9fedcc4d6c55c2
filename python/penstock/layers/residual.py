"""The residual stream between layers, with the newest output not yet added."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Residual(NamedTuple):
    """The sum of all layer outputs so far: `total` + x.

    The next norm adds the two, and all-reduces x if it is a partial sum. Layers handle everything
    else about tensor parallelism internally.
    """

    x: Tensor
    """[T, H], the last layer's output."""
    total: Tensor | None
    """[T, H], the sum before it, the same on every rank; None where x includes it."""
    partial: bool
    """Whether x is this rank's part of a sum over the ranks, not the same on every rank."""
