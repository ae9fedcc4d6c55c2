"""A mixture of experts whose router is an MLP, which reads the router before it too (ZAYA1).

Source: arXiv:2511.17127, section on the router (a narrow projection, averaged over depth).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from penstock_kernels import linear, route_experts
from penstock_kernels.route_experts import Routed
from torch import Tensor

from penstock.config import MoeSpec, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.experts import ExpertMlps
from penstock.layers.norm import RmsNorm
from penstock.layers.per_layer import WholeLinear
from penstock.weights import Target


class BiasedLinear(WholeLinear):
    """A small matrix and a bias that every rank has, in the model's dtype."""

    def __init__(self, build: Build, outputs: int, inputs: int) -> None:
        super().__init__(build, outputs, inputs)
        self.bias = build.empty(outputs)

    def targets(self) -> dict[str, Target]:
        """Also returns the target of the bias."""
        return {**super().targets(), "bias": Target.whole(self.bias)}

    def __call__(self, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, outputs]."""
        return linear(x, self.weight, self.bias)


class MlpRouter(Layer):
    """Scores the experts for each token from a narrow projection of it, to which that of the layer
    before is added, and chooses. Replicated on every rank, and floats in any weight format."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        size = spec.router.hidden
        self.routing, self.follows = spec.routing, spec.router.follows
        self.narrow = BiasedLinear(build, size, residual.hidden)
        self.depth_scale = build.empty(size) if self.follows else None
        self.norm = RmsNorm(build, size, residual.norm)
        self.first, self.second = (BiasedLinear(build, size, size) for _ in range(2))
        self.scores = WholeLinear(build, spec.choices, size)
        self.correction = build.empty(spec.choices, dtype=torch.float32)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the bias of the choice, and of the factor of the router before."""
        found = {"correction": Target.whole(self.correction)}
        if self.depth_scale is not None:
            found["depth_scale"] = Target.whole(self.depth_scale)
        return found

    def __call__(self, x: Tensor, before: Tensor | None) -> tuple[Routed, Tensor]:
        """x [T, hidden], normalised, and what the router before has returned [T, size] -> (the
        experts of each row and their weights, [T, size] for the next router)."""
        hidden = self.narrow(x)
        if self.depth_scale is not None:
            assert before is not None
            hidden = torch.addcmul(hidden, before, self.depth_scale)
        y, _ = self.norm(Residual(hidden, None, False))
        for layer in (self.first, self.second):
            y = F.gelu(layer(y))
        return route_experts(self.scores(y), self.correction, self.routing), hidden


class MlpRoutedMoe(Layer):
    """The feed-forward layer: the weighted sum of the experts that an MlpRouter chooses."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        self.router = MlpRouter(build, residual, spec)
        self.experts = ExpertMlps(build.below("experts"), residual.hidden, spec)

    def product(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """Returns the output for a normalised x, both [T, hidden], or [R, hidden] of `rows` of the
        step; a partial sum with several ranks."""
        before = context.routers.hidden if self.router.follows else None
        if before is not None and rows is not None:
            before = before.index_select(0, rows)
        routed, context.routers.hidden = self.router(x, before)
        return self.experts(x, routed)
