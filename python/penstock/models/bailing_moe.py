"""Ling and Ring 1 and 2: GLM-4.5's layers under other names, the first version with softmax
routing.

transformers has no model of them; the fields and names are those of the checkpoints' own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import Fields, MlpSpec, MoeSpec, QkNorm, RouterSpec, Specification
from penstock.models.decoder import (
    CORRECTION_PATH,
    EXPERT_NAMES,
    LLAMA_NAMES,
    SHARED_EXPERT_NAMES,
    Decoder,
    renamed,
)

LAYER, PATH = "model.layers.{}.", "blocks.{}.attention."
PARTS = dict.fromkeys(("embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj"))
ROTATED, FRACTION = "rotary_dim", "partial_rotary_factor"


class BailingMoe(Decoder):
    """Ling lite and plus, Ling 2.0 and Ring 2.0 mini, flash and 1T."""

    names: ClassVar[Mapping[str, str]] = {
        **renamed(LLAMA_NAMES | EXPERT_NAMES | SHARED_EXPERT_NAMES, **PARTS),
        "model.word_embeddings": "embedding",
        LAYER + "attention.query_key_value": PATH + "qkv",
        LAYER + "attention.query_layernorm": PATH + "q_norm",
        LAYER + "attention.key_layernorm": PATH + "k_norm",
        LAYER + "attention.dense": PATH + "out",
        LAYER + "mlp.gate.expert_bias": CORRECTION_PATH,
    }
    predicts_further = 1

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields. Raises BadModel."""
        fields = Fields(config.layered(raw, {"first_k_dense_replace": 0}))
        fields.ignore("embedding_dropout", "output_dropout", "mtp_loss_scaling_factor")  # training
        fields.ignore("norm_softmax", "router_dtype", "sliding_window", "max_window_layers")
        fields.require_unset("norm_head", "use_bias", "multi_gate", "use_sliding_window")
        fields.require("use_rmsnorm", True)
        fields.require_at_most("num_nextn_predict_layers", 1)
        if raw.get(ROTATED) is not None:
            fraction = fields.count(ROTATED) / fields.count("head_dim")
            fields = Fields(config.layered(fields.raw, {FRACTION: fraction}))
        residual = config.read_residual(fields)
        attention = config.read_attention(
            fields,
            config.read_rope(fields, partial=True),
            qkv_bias=fields.flag("use_qkv_bias"),
            qk_norm=QkNorm(residual.norm) if fields.flag("use_qk_norm") else None,
        )
        layers = config.read_dense_first(fields, attention, _experts(fields))
        return config.read_decoder(fields, layers, residual)


def _experts(fields: Fields) -> MoeSpec:
    corrected = fields.flag("moe_router_enable_expert_bias")
    fields.require("score_function", "sigmoid" if corrected else "softmax")
    routing = config.read_sigmoid_routing(fields)
    if not corrected:
        routing = config.read_routing(fields, renormalise=routing.renormalise, scale=routing.scale)
    expert = config.read_gated(fields, "moe_intermediate_size")
    size = fields.count("moe_shared_expert_intermediate_size", expert.intermediate)
    shared = MlpSpec(size * fields.count("num_shared_experts"), expert.activation)
    router = RouterSpec(correction=corrected, float32=corrected)
    return MoeSpec(config.read_expert_count(fields), expert, routing, router, shared)
