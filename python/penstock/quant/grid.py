"""Integer codes: how a range of weights becomes a scale and a zero point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.quant.packed import Quantized
from penstock.quant.ranges import BOTH_ENDS, EACH_END, Range, least_error, whole_range


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
    least_scale: float = 2.0**-14
    """A group of zeros needs a scale, too; this one is the smallest normal number of float16."""
    search: bool = False
    """Groups cover the range with the least error, not all of their weights."""

    @property
    def most(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def scales(self, groups: Tensor) -> Scales:
        """Of groups [..., group] float32. Without a search they cover [min, max], widened to hold
        0, or the largest magnitude on both sides."""
        whole = whole_range(groups)
        if self.symmetric:
            largest = torch.maximum(whole.high, -whole.low)
            whole = Range(-largest, largest)
        if not self.search:
            return self._of(whole)

        def rounded(tried: Range) -> Tensor:
            return self.rounded(groups, per_group(self._of(tried)))

        ends = BOTH_ENDS if self.symmetric else EACH_END
        return self._of(least_error(groups, whole, rounded, ends))

    def codes(self, values: Tensor, of: Scales) -> Tensor:
        """The nearest codes, float32; scales broadcast."""
        return (values / of.scales + of.zeros).round().clamp(0, self.most)

    def rounded(self, values: Tensor, of: Scales) -> Tensor:
        """The numbers that the nearest codes stand for."""
        return (self.codes(values, of) - of.zeros) * of.scales

    def quantized(self, codes: Tensor, of: Scales) -> Quantized:
        """Of codes [outputs, inputs] in any dtype, with the scales of groups [outputs, groups]."""
        zeros = None if self.symmetric else of.zeros.t().contiguous()
        return Quantized(codes.to(torch.uint8).contiguous(), of.scales.t().contiguous(), zeros)

    def _of(self, covered: Range) -> Scales:
        scales = ((covered.high - covered.low) / self.most).to(self.dtype).float()
        scales = scales.clamp(min=self.least_scale)
        if self.symmetric:
            return Scales(scales, torch.full_like(scales, float(1 << (self.bits - 1))))
        zeros = (-covered.low / scales).round().clamp(self.least_zero, self.most)
        return Scales(scales, zeros)


def round_to_nearest(matrix: Tensor, grid: Grid, group: int) -> Quantized:
    """Each weight of a matrix [outputs, inputs] on its own; `group` as in `grouped`."""
    groups = grouped(matrix.float(), group)
    of = grid.scales(groups)
    return grid.quantized(grid.codes(groups, per_group(of)).flatten(1), of)


def grouped(matrix: Tensor, group: int) -> Tensor:
    """A matrix [outputs, inputs] as [outputs, groups, group]; 0: a group is all of a row."""
    return matrix.reshape(len(matrix), -1, group or matrix.shape[1])


def per_group(of: Scales) -> Scales:
    """Scales [outputs, groups] that broadcast over `grouped`."""
    return Scales(of.scales[..., None], of.zeros[..., None])
