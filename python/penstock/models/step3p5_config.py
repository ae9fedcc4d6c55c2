"""Reads the config.json of Step 3.5 and 3.7: as published, or as transformers writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import SLIDING, TOP_K, Fields, Gate, LayerSpec, MoeSpec, NormKind, QkNorm
from penstock.models.step3p5_heads import read_heads
from penstock.models.step3p5_published import LIMITS, in_newer_fields

DEFAULTS = {"head_dim": 128, "num_attention_heads": 64, "num_key_value_heads": 8}
DEFAULTS |= {"num_hidden_layers": 45, "num_experts_per_tok": 8, "max_position_embeddings": 128_000}
DEFAULTS |= {"intermediate_size": 11264, "moe_intermediate_size": 1280, "share_expert_dim": 1280}
FLOATS = {"rms_norm_eps": 1e-5}
# What transformers computes whatever these fields are.
FIXED: dict[str, Any] = {"att_impl_type": "GQA", "hidden_act": "silu"}
FIXED["moe_router_activation"] = "sigmoid"
FIXED |= dict.fromkeys(("gating", "norm_expert_weight", "use_head_wise_attn_gate"), True)
FIXED |= dict.fromkeys(("use_moe", "use_moe_router_bias", "use_qk_norm", "zero_centered"), True)
UNSET = ("attention_bias", "mlp_bias", "sink", "use_bidirectional_attention")
# Of layers that are not loaded; the router computes in float32 anyway.
UNUSED = ("mtp_layer_types", "mtp_mlp_layer_types", "need_fp32_gate", "moe_layers_enum")


def read_step(raw: Mapping[str, Any]) -> config.Specification:
    """Raises BadModel."""
    fields = in_newer_fields(raw, DEFAULTS, FLOATS)
    for name, value in FIXED.items():
        fields.require(name, value)
    fields.require_unset(*UNSET)
    fields.ignore(*UNUSED)
    count = fields.count("num_hidden_layers")
    kinds = config.read_layer_types(fields, [config.FULL] * count)
    norm = config.NormSpec(fields.number("rms_norm_eps"), NormKind.RMS_PLUS_ONE)
    attention = {kind: _attention(fields, kind, norm) for kind in set(kinds)}
    heads, sparse = read_heads(fields, kinds), config.read_listed_sparse_layers(fields, count)
    dense, moe = config.read_gated(fields, "intermediate_size"), _experts(fields)
    routed, shared = (_limits(fields, name, count) for name in LIMITS)
    layers = []
    for layer, kind in enumerate(kinds):
        limits = routed[layer], shared[layer]
        mlp = _limited(moe, *limits) if sparse[layer] else replace(dense, limit=shared[layer])
        layers.append(LayerSpec(replace(attention[kind], heads=heads[layer]), mlp))
    return config.read_decoder(fields, layers, config.read_residual(fields, norm=norm))


def _attention(fields: Fields, kind: str, norm: config.NormSpec) -> config.AttentionSpec:
    fields.section("rope_parameters").section(kind)  # must be there
    rope = config.read_rope(fields, layer_type=kind, partial=True)
    one = config.read_attention(fields, rope, qk_norm=QkNorm(norm), gate=Gate.PER_HEAD)
    scale = fields.positive("query_pre_attn_scalar", one.head_dim) ** -0.5
    window = fields.count("sliding_window") if kind == SLIDING else 0
    return replace(one, scale=scale, window=window)


def _limits(fields: Fields, name: str, layers: int) -> list[float]:
    """Each layer's bound; 0 = none."""
    return [one.positive(name) if one.raw.get(name) else 0.0 for one in fields.each(name, layers)]


def _experts(fields: Fields) -> MoeSpec:
    scale = fields.positive("moe_router_scaling_factor", 1.0)
    routing = config.read_routing(fields, score=Score.SIGMOID, renormalise=True, scale=scale)
    expert = config.read_gated(fields, "moe_intermediate_size")
    shared = config.read_gated(fields, "share_expert_dim")
    # transformers rounds logits of the router to the model's dtype, which may swap experts.
    router = config.RouterSpec(correction=True, float32=True)
    experts, top_k = config.read_expert_count(fields, "moe_num_experts"), fields.spelled(TOP_K)
    return MoeSpec(experts, expert, routing, router, shared, top_k_field=top_k)


def _limited(moe: MoeSpec, limit: float, shared: float) -> MoeSpec:
    assert moe.shared is not None
    expert = replace(moe.expert, limit=limit)
    return replace(moe, expert=expert, shared=replace(moe.shared, limit=shared))
