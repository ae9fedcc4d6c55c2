"""A mixture of experts whose router weighs the shared experts among the chosen ones (Inkling)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from penstock_kernels import linear, route_experts
from penstock_kernels.route_experts import Routed
from torch import Tensor

from penstock.config import ExpertStorage, MoeSpec, ResidualSpec
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.experts import ExpertMlps, Router
from penstock.layers.norm import Norm
from penstock.weights import Target


class WeighedRouter(Router):
    """Chooses routed experts by the sigmoids of their logits, and weighs them and the shared ones,
    whose rows of the matrix are the last; replicated on every rank."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        super().__init__(build, residual, spec)
        self.routed = spec.experts
        rows = spec.experts + spec.weighed_shared
        self.weight = build.empty(rows, residual.hidden, dtype=self.weight.dtype)
        self.scale = build.empty(1, dtype=torch.float32)
        ids = torch.arange(spec.weighed_shared, dtype=torch.int32, device=build.device)
        self.shared_ids = ids

    def targets(self) -> dict[str, Target]:
        """Also returns the target of the weights' learned factor."""
        return {**super().targets(), "global_scale": Target.whole(self.scale)}

    def finish(self) -> None:
        """Multiplies both factors of the weights."""
        self.scale *= self.routing.scale

    def both(self, x: Tensor) -> tuple[Routed, Routed]:
        """Returns the routed and the shared experts of each row of a normalised x [T, hidden]: the
        weights of both together are sigmoids, divided by their sum, times the factor."""
        logits = linear(x.to(self.weight.dtype), self.weight, None)
        routed, shared = logits[:, : self.routed], logits[:, self.routed :]
        ids = route_experts(routed, self.correction, self.routing).ids
        # While kernels are only compiled, ids may be of no expert.
        chosen = routed.gather(1, ids.long().clamp(0, self.routed - 1))
        # By their logarithms, which no logit makes 0.
        weights = F.logsigmoid(torch.cat((chosen, shared), 1)).softmax(1).mul_(self.scale).float()
        count = ids.shape[1]
        every = self.shared_ids.expand(len(x), -1).contiguous()
        return (
            Routed(ids, weights[:, :count].contiguous()),
            Routed(every, weights[:, count:].contiguous()),
        )


class WeighedMoeMlp(Layer):
    """The feed-forward layer: the weighted sum of the chosen experts and of all shared ones."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        assert spec.shared is not None
        hidden, count = residual.hidden, spec.weighed_shared
        self.partial = build.group.size > 1
        self.router = WeighedRouter(build, residual, spec)
        self.experts = ExpertMlps(build.below("experts"), hidden, spec)
        parts = spec.storage is ExpertStorage.STACKED
        shared = MoeSpec(
            experts=count,
            expert=spec.shared,
            routing=replace(spec.routing, top_k=count),
            storage=ExpertStorage.STACKED_PARTS if parts else spec.storage,
        )
        # Each rank has its share of every shared expert, whatever it has of the others.
        below = replace(build.below("shared"), expert_parallel=False)
        self.shared = ExpertMlps(below, hidden, shared)

    def __call__(self, norm: Norm, residual: Residual) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the layer."""
        x, total = norm(residual)
        return Residual(self.product(x), total, self.partial)

    def product(self, x: Tensor) -> Tensor:
        """Returns the output for a normalised x, both [T, hidden]; a partial sum with several
        ranks."""
        routed, shared = self.router.both(x)
        return self.experts(x, routed).add_(self.shared(x, shared))
