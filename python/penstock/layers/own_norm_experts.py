"""A mixture of experts beside a dense layer, each with norms of its own (Gemma 4)."""

from __future__ import annotations

import torch
from penstock_kernels.route_experts import Routed
from torch import Tensor

from penstock.config import MoeSpec, ResidualSpec
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.experts import ExpertMlps, Router
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import Norm, RmsNorm, norm_of
from penstock.weights import Target


class RouterNorm(RmsNorm):
    """The norm of what the router reads: its weight is multiplied by hidden ** -0.5."""

    def __init__(self, build: Build, residual: ResidualSpec) -> None:
        super().__init__(build, residual.hidden, residual.norm)
        # In 16 bits the product would be rounded once more.
        wide = torch.promote_types(build.dtype, torch.float32)
        self.weight = build.empty(residual.hidden, dtype=wide)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the weight, replicated on every rank."""
        return {"scale": Target.whole(self.weight)}

    def finish(self) -> None:
        """Multiplies the weight."""
        self.weight.mul_(len(self.weight) ** -0.5)


class OwnNormMoeMlp(Layer):
    """The feed-forward layer: the sum of a dense layer and of the chosen experts, after a norm of
    each. The dense layer reads the norm before the feed-forward layer; router and experts have
    norms of their own."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        assert spec.shared is not None
        hidden, norm = residual.hidden, residual.norm
        self.partial = build.group.size > 1
        self.shared = GatedMlp(build.below("shared"), residual, spec.shared)
        self.shared_output_norm = norm_of(build, hidden, norm)
        self.router_norm = RouterNorm(build, residual)
        self.router = Router(build, residual, spec)
        self.expert_scale = build.empty(spec.experts, dtype=torch.float32)
        self.experts_norm = norm_of(build, hidden, norm)
        self.experts = ExpertMlps(build.below("experts"), hidden, spec)
        self.experts_output_norm = norm_of(build, hidden, norm)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the experts' factors."""
        return {"expert_scale": Target.whole(self.expert_scale)}

    def __call__(self, norm: Norm, residual: Residual) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the dense layer."""
        x, total = norm(residual)
        stream = Residual(total, None, False)
        routed = self.router(self.router_norm(stream)[0])
        # Of logits that are NaN, as before weights are loaded, ids may be of no expert.
        scales = self.expert_scale[routed.ids.long().clamp(0, len(self.expert_scale) - 1)]
        routed = Routed(routed.ids, routed.weights * scales)
        dense = self._normed(self.shared_output_norm, self.shared.product(x))
        sparse = self.experts(self.experts_norm(stream)[0], routed)
        return Residual(dense + self._normed(self.experts_output_norm, sparse), total, False)

    def _normed(self, norm: Norm, output: Tensor) -> Tensor:
        return norm(Residual(output, None, self.partial))[0]
