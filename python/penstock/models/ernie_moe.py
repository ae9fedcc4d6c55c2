"""Ernie 4.5 with experts: softmax routing with a correction bias, shared experts, dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    TOP_K,
    Fields,
    MlpSpec,
    MoeSpec,
    Renamed,
    RouterSpec,
    Specification,
    layered,
    read_expert_count,
    read_gated,
    read_routing,
)
from penstock.models.decoder import CORRECTION_PATH, EXPERT_NAMES, LLAMA_NAMES, SHARED_EXPERT_NAMES
from penstock.models.ernie import Ernie45

NAMES = {"moe_num_experts": "num_experts", "moe_k": TOP_K}
# Of training, and of layers that predict several tokens, which are not loaded.
UNUSED = (
    "moe_capacity",
    "moe_gate",
    "moe_norm_min",
    "num_nextn_predict_layers",
)


class Ernie45Moe(Ernie45):
    """Ernie 4.5 21B-A3B and 300B-A47B, text."""

    names: ClassVar[Mapping[str, str]] = {
        **(LLAMA_NAMES | EXPERT_NAMES | SHARED_EXPERT_NAMES),
        "model.layers.{}.mlp.moe_statics.e_score_correction_bias": CORRECTION_PATH,
    }
    ignored = (r"model\.mtp_.*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the experts to some of the layers."""
        fields = Fields(layered(raw, {"num_key_value_heads": 4}))
        fields.ignore(*UNUSED)
        head_dim = fields.count("hidden_size") // fields.count("num_attention_heads")
        spec = super().read_config(layered(fields.raw, {"head_dim": head_dim}))
        moe, count = _read_experts(fields), len(spec.layers)
        first = int(fields.number("moe_layer_start_index", 1))
        end = int(fields.number("moe_layer_end_index", -1))
        last = count - 1 if end == -1 else min(end, count - 1)
        interval = fields.count("moe_layer_interval", 1)
        layers = list(spec.layers)
        for index in range(first, last + 1):
            if (index + 1) % interval == 0:
                layers[index] = replace(layers[index], mlp=moe)
        return replace(spec, layers=tuple(layers))


def _read_experts(fields: Fields) -> MoeSpec:
    fields.require("use_bias", False)
    defaults = {"num_experts": 64, TOP_K: 6}
    named = Fields(layered(Renamed(fields.raw, NAMES), fields.raw, defaults))
    expert = read_gated(named, "moe_intermediate_size")
    shared = int(named.number("moe_num_shared_experts", 2)) * expert.intermediate
    return MoeSpec(
        read_expert_count(named),
        expert,
        read_routing(named, renormalise=True),
        RouterSpec(correction=fields.flag("moe_use_aux_free", True), float32=True),
        MlpSpec(shared, expert.activation) if shared else None,
        top_k_field=named.spelled(TOP_K),
    )
