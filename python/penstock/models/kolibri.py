"""Kolibri: Exaone 4's attention, norms on both sides of each layer, experts chosen by logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import SLIDING, Fields, LayerSpec, MoeSpec, QkNorm, RouterSpec, Specification
from penstock.models.decoder import (
    CORRECTION_PATH,
    EXPERT_NAMES,
    SHARED_EXPERT_NAMES,
    Decoder,
)
from penstock.models.qwen import Qwen3

LAYER = "model.layers.{}."
# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"head_dim": 128, "num_attention_heads": 48, "num_key_value_heads": 4}
DEFAULTS |= {"sliding_window": 513, "max_position_embeddings": 262_144, "num_hidden_layers": 50}
DEFAULTS |= {"num_experts_per_tok": 6, "moe_intermediate_size": 512}
DEFAULTS |= {"shared_expert_intermediate_size": 512}


class Kolibri(Decoder):
    """Kolibri-1."""

    names: ClassVar[Mapping[str, str]] = {
        **(Qwen3.names | EXPERT_NAMES | SHARED_EXPERT_NAMES),
        LAYER + "moe.router.expert_bias": CORRECTION_PATH,
        LAYER + "post_attn_norm": "blocks.{}.attention_output_norm",
        LAYER + "post_ffn_norm": "blocks.{}.mlp_output_norm",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(config.layered(raw, DEFAULTS))
        fields.require_unset("attention_bias")
        fields.ignore("intermediate_size")  # of dense layers
        residual = config.read_residual(fields, placement=config.Placement.SANDWICH)
        norm, moe = QkNorm(residual.norm), _experts(fields)
        attention = config.read_attention(fields, config.read_rope(fields), qk_norm=norm)
        count = fields.count("num_hidden_layers")
        kinds = config.read_layer_types(fields, config.periodic(count, 5))
        window = fields.count("sliding_window")
        spec = config.read_decoder(fields, [LayerSpec(attention, moe)] * count, residual)
        return spec.with_each_attention(
            {"window": window} if kind == SLIDING else {"rope": None} for kind in kinds
        )


def _experts(fields: Fields) -> MoeSpec:
    routing = config.read_routing(
        fields,
        score=Score.SIGMOID,
        score_after_choice=True,
        renormalise=fields.flag("norm_topk_prob"),
    )
    return MoeSpec(
        config.read_expert_count(fields),
        config.read_gated(fields, "moe_intermediate_size"),
        routing,
        RouterSpec(correction=True, float32=True),
        config.read_gated(fields, "shared_expert_intermediate_size"),
    )
