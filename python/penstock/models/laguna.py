"""Laguna: Qwen3's attention with a gate per head and heads per layer, the experts of Trinity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import FULL, SLIDING, Fields, Gate, LayerSpec, MoeSpec, QkNorm, Specification
from penstock.models.decoder import CORRECTION_PATH, EXPERT_NAMES, SHARED_EXPERT_NAMES, Decoder
from penstock.models.qwen import Qwen3

LAYER = "model.layers.{}."
ROPES = {FULL: {"rope_theta": 5e5, "partial_rotary_factor": 0.5}, SLIDING: {"rope_theta": 1e4}}
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 8, "sliding_window": 512}
HEADS = "num_attention_heads_per_layer"


class Laguna(Decoder):
    """Laguna XS and S."""

    names: ClassVar[Mapping[str, str]] = {
        **(Qwen3.names | EXPERT_NAMES),
        **{
            name.replace("shared_experts", "shared_expert"): path
            for name, path in SHARED_EXPERT_NAMES.items()
        },
        LAYER + "self_attn.g_proj": "blocks.{}.attention.qkv.gate",
        LAYER + "mlp.experts.e_score_correction_bias": CORRECTION_PATH,
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(config.layered(config.with_rope(raw, ROPES), DEFAULTS))
        count = fields.count("num_hidden_layers")
        fields.require_unset("attention_bias")
        fields.require("gating", True if fields.raw.get("gating") is True else "per-head")
        fields.require("gating_types", ["per_head"] * count)
        sparse = config.read_listed_sparse_layers(fields, count)
        fields.require("mlp_only_layers", [i for i in range(count) if not sparse[i]])
        fields.require("decoder_sparse_step", 1)
        kinds = config.read_layer_types(fields, [FULL] * count)
        ropes = {kind: config.read_rope(fields, layer_type=kind, partial=True) for kind in kinds}
        window = fields.count("sliding_window") if SLIDING in kinds else 0
        norm = QkNorm(config.read_residual(fields).norm)
        one = config.read_attention(fields, None, qk_norm=norm, gate=Gate.PER_HEAD_SOFTPLUS)
        mlps = config.read_gated(fields, "intermediate_size"), _experts(fields)
        layers = [
            LayerSpec(
                replace(one, heads=heads, rope=ropes[kind], window=window * (kind == SLIDING)),
                mlps[has_experts],
            )
            for heads, kind, has_experts in zip(_heads(fields, count), kinds, sparse, strict=True)
        ]
        return config.read_decoder(fields, layers)


def _heads(fields: Fields, layers: int) -> list[int]:
    """Each layer's query heads."""
    found = [fields.count("num_attention_heads")] * layers
    if fields.raw.get(HEADS):
        found = [one.count(HEADS) for one in fields.each(HEADS, layers)]
    return found


def _experts(fields: Fields) -> MoeSpec:
    fields.require("norm_topk_prob", True)
    fields.require("moe_router_use_sigmoid", True)
    fields.require_unset("moe_apply_router_weight_on_input", "moe_router_logit_softcapping")
    scale = fields.positive("moe_routed_scaling_factor", 1.0)
    routing = config.read_routing(fields, score=Score.SIGMOID, renormalise=True, scale=scale)
    expert = config.read_gated(fields, "moe_intermediate_size")
    shared = config.read_gated(fields, "shared_expert_intermediate_size")
    router = config.RouterSpec(correction=True, float32=True)
    return MoeSpec(config.read_expert_count(fields), expert, routing, router, shared)
