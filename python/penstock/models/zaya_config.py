"""Reads the layers of ZAYA1 from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock import config
from penstock.config import FULL, SLIDING, CcaSpec, Fields, LayerSpec, MoeSpec
from penstock.faults import BadModel

DEFAULTS: dict[str, Any] = {"vocab_size": 262272, "hidden_size": 2048, "num_hidden_layers": 40}
DEFAULTS |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128}
DEFAULTS |= {"num_experts": 16, "num_experts_per_tok": 1, "moe_intermediate_size": 2048}
DEFAULTS |= {"router_hidden_size": 256, "cca_time0": 2, "cca_time1": 2}
DEFAULTS |= {"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5}
DEFAULTS |= {"tie_word_embeddings": True}
HYBRID, HYBRID_SLIDING = "hybrid", "hybrid_sliding"
# What other families call the kinds of layers.
COMMON = {HYBRID: FULL, HYBRID_SLIDING: SLIDING}
ROPE = {"rope_type": "default", "partial_rotary_factor": 0.5}
ROPES = {
    HYBRID: {**ROPE, "rope_theta": 5e6},
    HYBRID_SLIDING: {**ROPE, "rope_theta": 1e4},
}


def with_common_ropes(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields, with RoPE by the names of kinds that other families have. Published files have a
    `rope_type` beside the kinds, which transformers ignores too."""
    ropes = raw.get("rope_parameters") or ROPES
    if not isinstance(ropes, Mapping) or not set(ropes) <= {*COMMON, "rope_type"}:
        raise BadModel(
            f"config.json: rope_parameters must have an object for {HYBRID} and for "
            f"{HYBRID_SLIDING}, found {ropes!r}"
        )
    by_common = {common: ropes.get(kind) for kind, common in COMMON.items()}
    return config.layered({"rope_parameters": by_common}, raw)


def read_layers(fields: Fields) -> list[LayerSpec]:
    """The layers of the specification: the convolutions' states are layers of their own. Raises
    BadModel."""
    default = [HYBRID] * fields.count("num_hidden_layers")
    kinds = config.read_layer_types(fields, default, HYBRID_SLIDING, HYBRID)
    fields.ignore("sliding_window")
    attentions = {kind: _read_attention(fields, kind) for kind in dict.fromkeys(kinds)}
    moe, layers = _read_experts(fields), []
    following = replace(moe, router=replace(moe.router, follows=True))
    widths = fields.count("cca_time0"), fields.count("cca_time1")
    for layer, kind in enumerate(kinds):
        one = attentions[kind]
        states = CcaSpec(one.heads, one.kv_heads, one.head_dim, *widths)
        layers += [LayerSpec(states, None), LayerSpec(one, following if layer else moe)]
    return layers


def _read_attention(fields: Fields, kind: str) -> config.AttentionSpec:
    window = fields.count("sliding_window") if kind == HYBRID_SLIDING else 0
    bias = fields.flag("attention_bias")
    rope = config.read_rope(fields, layer_type=COMMON[kind], partial=True)
    return config.read_attention(fields, rope, window=window, qkv_bias=bias, output_bias=bias)


def _read_experts(fields: Fields) -> MoeSpec:
    fields.require("num_experts_per_tok", 1)
    return MoeSpec(
        experts=config.read_expert_count(fields),
        expert=config.read_gated(fields, "moe_intermediate_size"),
        routing=config.read_routing(fields),
        router=config.RouterSpec(correction=True, hidden=fields.count("router_hidden_size")),
        storage=config.ExpertStorage.STACKED,
        idle=1,
    )
