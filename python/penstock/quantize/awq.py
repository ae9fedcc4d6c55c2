"""AWQ (arXiv:2306.00978): inputs with large activations get larger weights, so finer steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.quant.grid import Grid, grouped, per_group
from penstock.quantize.statistics import Inputs

STEPS = 20  # of the exponent's grid, from 0 to 1
CLIPS = tuple(1 - step / 20 for step in range(11))  # shares of the range that may be kept


@dataclass(frozen=True)
class Rounding:
    """How matrices will be rounded."""

    grid: Grid
    group: int

    def __call__(self, matrix: Tensor) -> Tensor:
        """The matrix [outputs, inputs] rounded to codes and back."""
        groups = grouped(matrix, self.group)
        return self.grid.rounded(groups, per_group(self.grid.scales(groups))).view_as(matrix)


def search_scales(matrices: list[Tensor], inputs: Inputs, rounding: Rounding) -> Tensor:
    """Factors [inputs] for the columns of matrices that share their inputs, which are divided by
    them: those with the least squared error of the outputs. All are 1 if nothing is better."""
    means = inputs.magnitude.clamp(min=1e-4)
    best, least = torch.ones_like(means), float("inf")
    for step in range(STEPS):
        scales = means ** (step / STEPS)
        scales = scales / (scales.amax() * scales.amin()).sqrt()
        error = 0.0
        for matrix in matrices:
            change = rounding(matrix * scales) / scales - matrix
            error += inputs.squared(change)
        if error < least:
            best, least = scales, error
    return best


def clipped(matrix: Tensor, inputs: Inputs, rounding: Rounding) -> Tensor:
    """The matrix with each group's weights cut to the range whose rounding has the least error,
    other groups aside."""
    groups = grouped(matrix, rounding.group)
    size = groups.shape[-1]
    starts = range(0, matrix.shape[1], size)
    squares = torch.stack([inputs.hessian[at : at + size, at : at + size] for at in starts])
    largest = groups.abs().amax(-1, keepdim=True)
    best, least = groups.clone(), torch.full_like(largest, float("inf"))
    for share in CLIPS:
        cut = groups.clamp(-largest * share, largest * share)
        change = rounding.grid.rounded(cut, per_group(rounding.grid.scales(cut))) - groups
        product = torch.einsum("ogi,gij->ogj", change, squares)
        error = (product * change).sum(-1, keepdim=True)
        better = error < least
        best, least = torch.where(better, cut, best), torch.where(better, error, least)
    return best.reshape(matrix.shape)
