"""Command R and Command A: attention beside the feed-forward layer, LayerNorm, scaled logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock import config
from penstock.config import SLIDING, Fields, Placement, QkNorm, QkNormWidth, Specification, layered
from penstock.models.decoder import LLAMA_NAMES, QK_NORM_NAMES, Decoder, renamed

DEFAULTS = {"tie_word_embeddings": True, "rope_theta": 500_000.0}
# What the first checkpoints say of themselves.
FIXED = {
    "use_parallel_block": True,
    "use_gated_activation": True,
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_embedding_sharing": True,
}


class Cohere(Decoder):
    """Command R, R+ and Aya."""

    names: ClassVar[Mapping[str, str]] = {
        **renamed(LLAMA_NAMES, post_attention_layernorm=None),
        **QK_NORM_NAMES,
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, DEFAULTS))
        for name, value in FIXED.items():
            fields.require(name, value)
        fields.ignore("use_parallel_embedding")
        norm = config.read_layer_norm(fields, "layer_norm_eps", bias=False)
        bias = fields.flag("attention_bias")
        attention = config.read_attention(
            fields,
            replace(config.read_rope(fields), interleaved=True),
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QkNorm(norm, QkNormWidth.OWN) if fields.flag("use_qk_norm") else None,
        )
        layer = config.LayerSpec(attention, config.read_mlp(fields, "hidden_act", "silu"))
        residual = config.read_residual(fields, norm=norm, placement=Placement.PARALLEL)
        layers = [layer] * fields.count("num_hidden_layers")
        scale = fields.positive("logit_scale", 0.0625)
        return config.read_decoder(fields, layers, residual, logits_scale=scale)


class Cohere2(Cohere):
    """Command R7B and Command A: three of four layers have a window; the others have no RoPE."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds windows, and drops the RoPE of full layers."""
        fields = Fields(layered(raw, {"sliding_window": 4096, "rope_theta": 10000.0}))
        fields.require_unset("use_qk_norm")
        fields.require("order_of_interleaved_layers", "local_attn_first")
        fields.ignore("layer_switch")
        spec = super().read_config(fields.raw)
        period = fields.count("sliding_window_pattern", 4)
        kinds = config.read_layer_types(fields, config.periodic(len(spec.layers), period))
        window = fields.count("sliding_window") if SLIDING in kinds else 0
        return spec.with_each_attention(
            {"window": window} if kind == SLIDING else {"rope": None} for kind in kinds
        )
