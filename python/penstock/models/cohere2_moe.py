"""Command A+ and North Mini: Cohere 2 with experts in all but the first layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock_kernels.route_experts import Routing, Score

from penstock import config
from penstock.config import Fields, LayerSpec, MlpSpec, MoeSpec, NormSpec, Specification, layered
from penstock.faults import Unsupported
from penstock.models.cohere import Cohere2
from penstock.models.decoder import EXPERT_NAMES, SHARED_EXPERT_NAMES

PREFIX, STRATEGY = "prefix_dense_intermediate_size", "shared_expert_combination_strategy"
DEFAULTS = {"first_k_dense_replace": 0, "head_dim": 128}


class Cohere2Moe(Cohere2):
    """Command A+, North Mini Code: norms may be RMS, and dense layers have RoPE without windows."""

    names: ClassVar[Mapping[str, str]] = {**Cohere2.names, **EXPERT_NAMES, **SHARED_EXPERT_NAMES}

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the kind of each layer, then its feed-forward layer."""
        fields = Fields(layered(raw, DEFAULTS))
        count, first = (
            fields.count("num_hidden_layers"),
            int(fields.number("first_k_dense_replace")),
        )
        period = fields.count("prefix_dense_sliding_window_pattern", 1)
        rest = config.periodic(count - first, fields.count("sliding_window_pattern", 4))
        kinds = config.read_layer_types(fields, [*config.periodic(first, period), *rest])
        spec = super().read_config(layered({"layer_types": kinds}, fields.raw))
        if fields.raw.get("rms_norm_eps") is not None:
            norm = NormSpec(fields.number("rms_norm_eps"))
            spec = replace(spec, residual=replace(spec.residual, norm=norm))
        rope = replace(config.read_rope(fields), interleaved=True)
        dense, moe = _dense(fields), _experts(fields)
        sparse = config.read_listed_sparse_layers(fields, count)
        spec = spec.with_each_attention(
            {} if has_experts or period > 1 else {"rope": rope} for has_experts in sparse
        )
        layers = (
            LayerSpec(layer.attention, moe if has_experts else dense)
            for layer, has_experts in zip(spec.layers, sparse, strict=True)
        )
        return replace(spec, layers=tuple(layers))


def _dense(fields: Fields) -> MlpSpec:
    return config.read_gated(fields, PREFIX if fields.raw.get(PREFIX) else "intermediate_size")


def _experts(fields: Fields) -> MoeSpec:
    """Experts, and perhaps shared ones: then the mean of both, or their sum."""
    expert, routing = config.read_gated(fields, "intermediate_size"), _routing(fields)
    count, shared = fields.number("num_shared_experts", 0), None
    if fields.raw.get(STRATEGY, "average") not in ("average", "sum"):
        raise Unsupported(f"config.json: {STRATEGY} {fields.raw[STRATEGY]!r} is not supported")
    if count:
        share = 0.5 if fields.raw.get(STRATEGY, "average") == "average" else 1.0
        routing = replace(routing, scale=share)
        size = expert.intermediate * fields.count("num_shared_experts")
        shared = replace(expert, intermediate=size, output_scale=share)
    return MoeSpec(config.read_expert_count(fields), expert, routing, shared=shared)


def _routing(fields: Fields) -> Routing:
    renormalise = fields.flag("norm_topk_prob", True)
    if fields.raw.get("expert_selection_fn", "softmax") == "softmax":
        return config.read_routing(fields, score_after_choice=True)
    fields.require("expert_selection_fn", "sigmoid")
    return config.read_routing(fields, score=Score.SIGMOID, renormalise=renormalise)
