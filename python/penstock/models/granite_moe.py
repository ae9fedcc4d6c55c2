"""Granite 3 with experts, perhaps with shared ones; a tensor holds a matrix of all experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    ExpertStorage,
    Fields,
    MlpSpec,
    MoeSpec,
    Specification,
    read_expert_count,
    read_gated,
    read_routing,
)
from penstock.models.decoder import LLAMA_NAMES
from penstock.models.granite import Granite

LAYER = "model.layers.{}."


class GraniteMoe(Granite):
    """Granite 3.0 and 3.1 1B-A400M and 3B-A800M."""

    names: ClassVar[Mapping[str, str]] = {
        **{module: path for module, path in LLAMA_NAMES.items() if ".mlp." not in module},
        LAYER + "block_sparse_moe.router.layer": "blocks.{}.mlp.router",
        LAYER + "block_sparse_moe.input_linear": "blocks.{}.mlp.experts.gate_up",
        LAYER + "block_sparse_moe.output_linear": "blocks.{}.mlp.experts.down",
        LAYER + "shared_mlp.input_linear": "blocks.{}.mlp.shared.gate_up",
        LAYER + "shared_mlp.output_linear": "blocks.{}.mlp.shared.down",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Replaces the feed-forward layers."""
        fields, spec = Fields(raw), super().read_config(raw)
        fields.require_unset("mlp_bias")
        expert = read_gated(fields, "intermediate_size")
        shared = int(fields.number("shared_intermediate_size", 0))
        moe = MoeSpec(
            read_expert_count(fields, "num_local_experts"),
            expert,
            read_routing(fields, renormalise=True),
            shared=MlpSpec(shared, expert.activation) if shared else None,
            storage=ExpertStorage.STACKED,
        )
        return replace(spec, layers=tuple(replace(layer, mlp=moe) for layer in spec.layers))
