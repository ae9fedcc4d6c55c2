"""LFM2 with experts: sigmoid routing with a correction bias; the first layers are dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock_kernels.route_experts import Score

from penstock.config import (
    Fields,
    MlpSpec,
    MoeSpec,
    RouterSpec,
    read_expert_count,
    read_routing,
)
from penstock.models.lfm2 import LAYER, Lfm2

EXPERT = LAYER + "feed_forward.experts.{}."


class Lfm2Moe(Lfm2):
    """LFM2 8B-A1B."""

    names: ClassVar[Mapping[str, str]] = {
        **Lfm2.names,
        LAYER + "feed_forward.gate": "blocks.{}.mlp.router",
        LAYER + "feed_forward.expert_bias": "blocks.{}.mlp.router.e_score_correction_bias",
        EXPERT + "w1": "blocks.{}.mlp.experts.{}.gate_up.gate",
        EXPERT + "w3": "blocks.{}.mlp.experts.{}.gate_up.up",
        EXPERT + "w2": "blocks.{}.mlp.experts.{}.down",
    }

    @staticmethod
    def mlps(fields: Fields, layers: int) -> list[Any]:
        """Returns the feed-forward layer of each layer."""
        routing = read_routing(
            fields,
            score=Score.SIGMOID,
            renormalise=fields.flag("norm_topk_prob", True),
            scale=fields.positive("routed_scaling_factor", 1.0),
        )
        expert = MlpSpec(fields.count("moe_intermediate_size"))
        router = RouterSpec(correction=fields.flag("use_expert_bias", True))
        moe = MoeSpec(read_expert_count(fields), expert, routing, router)
        dense, first = (
            MlpSpec(fields.count("intermediate_size")),
            fields.number("num_dense_layers", 2),
        )
        return [dense if layer < first else moe for layer in range(layers)]
