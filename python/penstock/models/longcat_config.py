"""Reads the attention and the experts of LongCat-Flash from config.json."""

from __future__ import annotations

from dataclasses import replace

from penstock.config import (
    AttentionSpec,
    Fields,
    MlpSpec,
    MoeSpec,
    RouterSpec,
    read_expert_count,
    read_gated,
    read_latent_attention,
    read_routing,
)


def read_scaled_attention(fields: Fields) -> AttentionSpec:
    """Latent attention, with factors of both latents; that of the queries' is part of the scale."""
    fields.require("attention_method", "MLA")
    for name in ("mla_scale_q_lora", "mla_scale_kv_lora", "rope_interleave"):
        fields.require(name, True)
    attention, hidden = read_latent_attention(fields), fields.count("hidden_size")
    assert attention.latent is not None
    latent = replace(attention.latent, factor=(hidden / attention.latent.rank) ** 0.5)
    scale = attention.scale * (hidden / fields.count("q_lora_rank")) ** 0.5
    return replace(attention, scale=scale, latent=latent)


def read_experts(fields: Fields, dense: MlpSpec) -> MoeSpec:
    """Experts beside a `dense` layer, and those that yield their input."""
    fields.require_unset("router_bias", "norm_topk_prob")
    fields.require("zero_expert_type", "identity")
    chosen = Fields({"num_experts_per_tok": fields.count("moe_topk")})
    scale = fields.positive("routed_scaling_factor", 6.0)
    identities = fields.count("zero_expert_num", 256) if fields.raw.get("zero_expert_num", 1) else 0
    return MoeSpec(
        read_expert_count(fields, "n_routed_experts"),
        read_gated(fields, "expert_ffn_hidden_size"),
        read_routing(chosen, scale=scale, renormalise=False),
        RouterSpec(correction=True, float32=True),
        dense,
        identities=identities,
        top_k_field="moe_topk",
    )
