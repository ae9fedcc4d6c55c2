"""An activation with learned numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.layers.base import Build, Layer
from penstock.weights import Target


class Xielu(Layer):
    """xIELU (arXiv:2411.13010), with a and b that each layer has learned:

    a x^2 + beta x above 0, else b (exp(min(x, eps)) - 1 - x) + beta x.

    Checkpoints store what a's and b's softplus is of, and less beta for b.
    """

    def __init__(self, build: Build) -> None:
        dtype = torch.promote_types(build.dtype, torch.float32)
        self.alpha_p, self.alpha_n = build.empty(1, dtype=dtype), build.empty(1, dtype=dtype)
        # Without dimensions, so that products have the dtype of x.
        self.beta, self.eps = build.empty(dtype=dtype), build.empty(dtype=dtype)
        self.positive, self.negative = self.alpha_p[0], self.alpha_n[0]

    def targets(self) -> dict[str, Target]:
        """Returns the targets of all four numbers; every rank has them."""
        names = "alpha_p", "alpha_n", "beta", "eps"
        return {name: Target.whole(getattr(self, name)) for name in names}

    def finish(self) -> None:
        """Computes a and b."""
        self.positive = F.softplus(self.alpha_p)[0]
        self.negative = self.beta + F.softplus(self.alpha_n)[0]

    def __call__(self, x: Tensor) -> Tensor:
        """x of any shape -> the same."""
        curve = torch.expm1(torch.minimum(x, self.eps)).sub_(x).mul_(self.negative)
        return torch.where(x > 0, x * x * self.positive, curve).add_(x * self.beta)
