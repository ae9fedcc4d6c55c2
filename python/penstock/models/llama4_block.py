"""The layer of Llama 4, and its names in checkpoints."""

from __future__ import annotations

import torch
from penstock_kernels.route_experts import Routed
from torch import Tensor

from penstock.config import MoeSpec, ResidualSpec
from penstock.layers import Block, Build, GatedMlp, Mlp, MoeMlp, OwnNormMoeMlp, WeighedMoeMlp
from penstock.models.decoder import LLAMA_NAMES

MLP, PATH = "model.layers.{}.feed_forward.", "blocks.{}.mlp."
MATRICES = {"gate_proj": "gate_up.gate", "up_proj": "gate_up.up", "down_proj": "down"}
NAMES = {name.replace(".mlp.", ".feed_forward."): path for name, path in LLAMA_NAMES.items()} | {
    MLP + "router": PATH + "router",
    MLP + "experts.gate_up_proj": PATH + "experts.gate_up.weight",
    MLP + "experts.down_proj": PATH + "experts.down.weight",
}
for name, path in MATRICES.items():
    NAMES[f"{MLP}experts.{{}}.{name}"] = f"{PATH}experts.{{}}.{path}"
    NAMES[f"{MLP}shared_expert.{name}"] = f"{PATH}shared.{path}"


class Llama4Moe(MoeMlp):
    """A mixture of experts, one for each row. It reads the row times its weight, and what it yields
    has none."""

    def _of_experts(self, x: Tensor, routed: Routed) -> Tensor:
        ones = torch.ones_like(routed.weights)
        return self.experts(x * routed.weights.to(x.dtype), Routed(routed.ids, ones))


class Llama4Block(Block):
    """A decoder layer whose experts read scaled rows."""

    def feed_forward(
        self, build: Build, stream: ResidualSpec
    ) -> GatedMlp | Mlp | MoeMlp | OwnNormMoeMlp | WeighedMoeMlp:
        """Builds the feed-forward layer."""
        spec = self.kind.mlp
        if isinstance(spec, MoeSpec):
            return Llama4Moe(build, stream, spec)
        return super().feed_forward(build, stream)
