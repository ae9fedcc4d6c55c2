"""The layer of LongCat-Flash: two decoder layers, across which experts' output is added."""

from __future__ import annotations

import torch
from penstock_kernels.route_experts import Routed
from torch import Tensor

from penstock.config import MlpSpec, MoeSpec, ResidualSpec, Specification
from penstock.layers import Build, Layer, MoeMlp, Residual, attention_of, mlp_of, norm_of
from penstock.layers.attention import StepContext


class IdentityMoe(MoeMlp):
    """A mixture of experts; the last ones yield what they read."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MoeSpec) -> None:
        super().__init__(build, residual, spec)
        self.computed, self.is_first = spec.experts, build.group.rank == 0

    def routed(self, x: Tensor) -> Tensor:
        """Returns the sum of each row's experts alone, for a normalised x, both [T, hidden]; a
        partial sum with several ranks."""
        return self._of_experts(x, self.router(x))

    def _of_experts(self, x: Tensor, routed: Routed) -> Tensor:
        found = self.experts(x, routed)  # ids of no matrices add nothing
        if not self.is_first:
            return found
        kept = torch.where(routed.ids >= self.computed, routed.weights, 0).sum(1, keepdim=True)
        return found.add_((x * kept).to(found.dtype))


class ShortcutBlock(Layer):
    """Two decoder layers. Experts of the first read the norm before its dense layer."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        """`index`: of the block; its layers are 2 `index` and the next one."""
        layers = self.kind = spec.layers[2 * index : 2 * index + 2]
        stream, below = spec.residual, build.below(f"blocks.{index}")
        self.partial = build.group.size > 1
        self.attention_norms = [norm_of(build, stream.hidden, stream.norm) for _ in layers]
        self.attentions = [
            attention_of(below.below(f"attentions.{i}"), stream, layer.attention, 2 * index + i)
            for i, layer in enumerate(layers)
        ]
        self.mlp_norms = [norm_of(build, stream.hidden, stream.norm) for _ in layers]
        first, second = layers[0].mlp, layers[1].mlp
        assert isinstance(first, MoeSpec) and isinstance(second, MlpSpec)
        self.mlp = IdentityMoe(below.below("mlp"), stream, first)
        self.last = mlp_of(below.below("last"), stream, second)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        residual = self.attentions[0](self.attention_norms[0], residual, context)
        x, total = self.mlp_norms[0](residual)
        assert self.mlp.shared is not None
        late, dense = self.mlp.routed(x), self.mlp.shared.product(x)
        residual = Residual(dense, total, self.partial)
        residual = self.attentions[1](self.attention_norms[1], residual, context, rows)
        residual = self.last(self.mlp_norms[1], residual)
        late = late if rows is None else late.index_select(0, rows)
        return residual._replace(x=residual.x + late)
