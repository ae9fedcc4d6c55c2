"""The inputs of a layer's matrices on the calibration texts."""

from __future__ import annotations

import torch
from torch import Tensor


class Inputs:
    """Sums over the rows x [inputs] that a matrix multiplied."""

    def __init__(self, inputs: int, device: torch.device) -> None:
        self._squares = torch.zeros(inputs, inputs, device=device)
        self._magnitudes = torch.zeros(inputs, device=device)
        self.rows = 0

    def add(self, x: Tensor) -> None:
        """Adds rows [T, inputs]."""
        wide = x.float()
        self._squares.addmm_(wide.t(), wide)
        self._magnitudes += wide.abs().sum(0)
        self.rows += len(x)

    @property
    def hessian(self) -> Tensor:
        """The mean of x^T x [inputs, inputs]: half the Hessian of the squared error."""
        return self._squares / max(self.rows, 1)

    @property
    def magnitude(self) -> Tensor:
        """The mean of |x| [inputs]."""
        return self._magnitudes / max(self.rows, 1)

    def squared(self, matrix: Tensor) -> float:
        """The mean over rows of |matrix x|^2."""
        return float(((matrix @ self.hessian) * matrix).sum())

    def divided(self, factors: Tensor) -> Inputs:
        """The statistics of x / factors [inputs]."""
        found = Inputs(len(factors), factors.device)
        found._squares = self._squares / torch.outer(factors, factors)
        found._magnitudes = self._magnitudes / factors
        found.rows = self.rows
        return found
