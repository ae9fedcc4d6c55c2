"""Ernie 4.5 with experts: softmax routing with a correction bias, shared experts, dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    RouterSpec,
    Specification,
    layered,
    read_expert_count,
    read_gated,
    read_routing,
)
from penstock.models.decoder import EXPERT_NAMES, LLAMA_NAMES, SHARED_EXPERT_NAMES
from penstock.models.ernie import Ernie45

CORRECTION = "e_score_correction_bias"
DEFAULTS = {
    "moe_k": 6,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "num_key_value_heads": 4,
}
# Of training, and of layers that predict several tokens, which are not loaded.
UNUSED = (
    "moe_capacity",
    "moe_gate",
    "moe_use_aux_free",
    "moe_norm_min",
    "num_nextn_predict_layers",
)


class Ernie45Moe(Ernie45):
    """Ernie 4.5 21B-A3B and 300B-A47B, text."""

    names: ClassVar[Mapping[str, str]] = {
        **LLAMA_NAMES,
        **EXPERT_NAMES,
        **SHARED_EXPERT_NAMES,
        f"model.layers.{{}}.mlp.moe_statics.{CORRECTION}": f"blocks.{{}}.mlp.router.{CORRECTION}",
    }
    ignored = (r"model\.mtp_.*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the experts to some of the layers."""
        head_dim = int(raw["hidden_size"]) // int(raw["num_attention_heads"])
        fields = Fields(layered(raw, DEFAULTS, {"head_dim": head_dim}))
        fields.ignore(*UNUSED)
        spec = super().read_config(fields.raw)
        moe = _read_experts(fields)
        interval, count = fields.count("moe_layer_interval"), len(spec.layers)
        first = int(fields.number("moe_layer_start_index"))
        last = int(fields.number("moe_layer_end_index")) % count
        layers = tuple(
            LayerSpec(layer.attention, moe if sparse else layer.mlp)
            for index, layer in enumerate(spec.layers)
            for sparse in [first <= index <= last and (index + 1) % interval == 0]
        )
        return replace(spec, layers=layers)


def _read_experts(fields: Fields) -> MoeSpec:
    fields.require("use_bias", False)
    names = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"}
    named = Fields(layered({new: fields.raw[old] for new, old in names.items()}, fields.raw))
    expert = read_gated(named, "moe_intermediate_size")
    shared = int(named.number("moe_num_shared_experts")) * expert.intermediate
    return MoeSpec(
        read_expert_count(named),
        expert,
        read_routing(named, renormalise=True),
        RouterSpec(correction=True, float32=True),
        MlpSpec(shared, expert.activation) if shared else None,
    )
