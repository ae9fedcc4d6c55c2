"""Hunyuan with experts in all layers, chosen by softmax, beside one shared expert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    MlpSpec,
    MoeSpec,
    RouterSpec,
    Specification,
    read_expert_count,
    read_gated,
    read_routing,
)
from penstock.faults import BadModel, Unsupported
from penstock.models.decoder import EXPERT_NAMES, SHARED_EXPERT_NAMES, renamed
from penstock.models.hunyuan import HunYuan

# transformers has one shared expert, of the same size as the others, and these rules of routing.
ONLY: Mapping[str, Any] = {
    "group_limited_greedy": False,
    "moe_layer_num_skipped": 0,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "use_mixed_mlp_moe": True,
}


class HunYuanMoe(HunYuan):
    """Hunyuan-A13B."""

    names: ClassVar[Mapping[str, str]] = {
        **HunYuan.names,
        **renamed(EXPERT_NAMES, gate="gate.wg"),
        **{n.replace("shared_experts", "shared_mlp"): p for n, p in SHARED_EXPERT_NAMES.items()},
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Puts experts into all layers; the layers may choose different numbers of them."""
        spec, fields = super().read_config(raw), Fields(raw)
        expert = read_gated(fields, "intermediate_size")
        count, size = len(spec.layers), expert.intermediate
        for name, only in (("moe_intermediate_size", size), ("num_shared_expert", 1)):
            if set(_each(fields, name, count, only)) != {only}:
                raise Unsupported(f"config.json: {name} other than {only} is not supported")
        chosen = _each(fields, "moe_topk", count, 1)
        layers = [
            replace(layer, mlp=_experts(fields, expert, number))
            for layer, number in zip(spec.layers, chosen, strict=True)
        ]
        return replace(spec, layers=tuple(layers))

    @classmethod
    def require_experts(cls, fields: Fields) -> None:
        """Rejects other routing."""
        for name, only in ONLY.items():
            fields.require(name, only)


def _experts(fields: Fields, expert: MlpSpec, chosen: int) -> MoeSpec:
    routing = read_routing(Fields({"num_experts_per_tok": chosen}), renormalise=True)
    experts, router = read_expert_count(fields), RouterSpec(float32=True)
    return MoeSpec(experts, expert, routing, router, expert, top_k_field="moe_topk")


def _each(fields: Fields, name: str, layers: int, default: int) -> list[int]:
    """A number for each layer, from a list or from the number of all."""
    found = fields.raw.get(name)
    if not isinstance(found, list):
        return [fields.count(name, default)] * layers
    if len(found) < layers:
        raise BadModel(f"config.json: {name} must hold a number for each of {layers} layers")
    return [Fields({name: number}).count(name) for number in found[:layers]]
