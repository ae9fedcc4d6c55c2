"""Arcee Trinity: attention with a gate, norms on both sides of each layer, sigmoid routing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import SLIDING, Fields, Gate, Placement, QkNorm, RouterSpec, Specification
from penstock.models.decoder import (
    CORRECTION_PATH,
    EXPERT_NAMES,
    LLAMA_NAMES,
    QK_NORM_NAMES,
    SHARED_EXPERT_NAMES,
    Decoder,
    renamed,
)

LAYER = "model.layers.{}."
DEFAULTS = {"head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": 1024}


class Afmoe(Decoder):
    """Trinity Nano, Mini and Large."""

    names: ClassVar[Mapping[str, str]] = {
        **(LLAMA_NAMES | QK_NORM_NAMES | SHARED_EXPERT_NAMES),
        **renamed(EXPERT_NAMES, gate="router.gate"),
        LAYER + "self_attn.gate_proj": "blocks.{}.attention.qkv.gate",
        LAYER + "post_attention_layernorm": "blocks.{}.attention_output_norm",
        LAYER + "pre_mlp_layernorm": "blocks.{}.mlp_norm",
        LAYER + "post_mlp_layernorm": "blocks.{}.mlp_output_norm",
        LAYER + "mlp.expert_bias": CORRECTION_PATH,
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        named = {
            "first_k_dense_replace": Fields(raw).number("num_dense_layers", 1),
            "n_shared_experts": Fields(raw).count("num_shared_experts", 2),
        }
        fields = Fields(config.layered(named, raw, DEFAULTS))
        fields.require("attention_bias", False)
        fields.require("score_func", "sigmoid")
        fields.require("route_norm", True)
        fields.ignore("load_balance_coeff", "use_grouped_mm")  # of training and launches
        residual = config.read_residual(fields, placement=Placement.SANDWICH)
        norm = QkNorm(residual.norm)
        attention = config.read_attention(
            fields, config.read_rope(fields), qk_norm=norm, gate=Gate.OWN
        )
        scale = fields.positive("route_scale", 1.0)
        routing = config.read_routing(fields, score=Score.SIGMOID, renormalise=True, scale=scale)
        # transformers rounds logits of the router to the model's dtype, which may swap experts.
        moe = config.read_shared_moe(
            fields, routing, RouterSpec(correction=True, float32=True), "num_experts"
        )
        layers = config.read_dense_first(fields, attention, moe)
        factor = residual.hidden**0.5 if fields.flag("mup_enabled") else 1.0
        spec = config.read_decoder(fields, layers, residual, embedding_scale=factor)
        period = fields.count("global_attn_every_n_layers", 4)
        kinds = config.read_layer_types(fields, config.periodic(len(layers), period))
        window = fields.count("sliding_window")
        return spec.with_each_attention(
            {"window": window} if kind == SLIDING else {"rope": None} for kind in kinds
        )
