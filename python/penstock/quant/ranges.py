"""Which range of weights the codes of a group cover.

A range that leaves out the largest weights has finer steps for all others. The search needs no
calibration: it compares the errors of the weights themselves, as the half-quadratic quantization of
Badri and Shaji (2023) and the option `mse` of GPTQ's authors do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

SHARES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Of each end of the whole range. Less than 0.7 never helped on brook."""
NORM = 2.4
"""Exponent of the error, that of GPTQ's authors."""


class Range(NamedTuple):
    """Of groups [...]; it holds 0."""

    low: Tensor
    high: Tensor


Rounded: TypeAlias = Callable[[Range], Tensor]
"""Makes of ranges [...] the numbers [..., group] that the nearest codes stand for."""


def whole_range(groups: Tensor) -> Range:
    """Of groups [..., group]: [min, max], widened to hold 0."""
    return Range(groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0))


EACH_END = ((1, 0), (0, 1))
"""Which ends a search moves, (high, low), one turn after the other."""
BOTH_ENDS = ((1, 1),)
"""Of ranges that are as wide on either side of 0."""


def least_error(
    groups: Tensor, whole: Range, rounded: Rounded, turns: tuple[tuple[int, int], ...]
) -> Range:
    """The range of each group [..., group] whose rounding has the least error: of shares of the
    whole range's ends, and then, with the best of these, of those that the next turn moves."""
    best = whole
    least = _error(groups, rounded(best))
    for high, low in turns:
        start = best
        for share in SHARES:
            tried = Range(start.low * share**low, start.high * share**high)
            error = _error(groups, rounded(tried))
            better = error < least
            least = torch.where(better, error, least)
            best = Range(*(torch.where(better, *ends) for ends in zip(tried, best, strict=True)))
    return best


def _error(groups: Tensor, rounded: Tensor) -> Tensor:
    return (groups - rounded).abs().pow(NORM).sum(-1)
