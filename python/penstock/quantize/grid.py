"""Integer codes: how a range of weights becomes a scale and a zero point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scales:
    """Of rows, or of groups of a row: float32 of any shape."""

    scales: Tensor
    zeros: Tensor


@dataclass(frozen=True)
class Grid:
    """Unsigned integers of `bits` bits."""

    bits: int
    symmetric: bool
    dtype: torch.dtype
    """In which scales are stored; they are rounded to it before codes are chosen."""
    least_zero: int = 0
    """The smallest zero point. GPTQ's layout stores zero points less one, so 0 would need a borrow
    from the next one, which some readers do not know."""

    @property
    def most(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def scales(self, groups: Tensor) -> Scales:
        """Of groups [..., group] float32; they cover [min, max], widened to hold 0, or the largest
        magnitude on both sides."""
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        if self.symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scales = self._stored((high - low) / self.most)
        if self.symmetric:
            return Scales(scales, torch.full_like(scales, float(1 << (self.bits - 1))))
        return Scales(scales, (-low / scales).round().clamp(self.least_zero, self.most))

    def codes(self, values: Tensor, of: Scales) -> Tensor:
        """The nearest codes, float32; scales broadcast."""
        return (values / of.scales + of.zeros).round().clamp(0, self.most)

    def rounded(self, values: Tensor, of: Scales) -> Tensor:
        """The numbers that the nearest codes stand for."""
        return (self.codes(values, of) - of.zeros) * of.scales

    def _stored(self, scales: Tensor) -> Tensor:
        # The smallest normal number of float16: a group of zeros needs a scale, too.
        return scales.clamp(min=2.0**-14).to(self.dtype).float()


def grouped(matrix: Tensor, group: int) -> Tensor:
    """A matrix [outputs, inputs] as [outputs, groups, group]."""
    return matrix.reshape(len(matrix), -1, group or matrix.shape[1])


def per_group(of: Scales) -> Scales:
    """Scales [outputs, groups] that broadcast over `grouped`."""
    return Scales(of.scales[..., None], of.zeros[..., None])
