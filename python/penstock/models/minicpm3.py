"""MiniCPM3: latent attention without experts; factors of embeddings, layers and logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.config import Fields, Specification, layered
from penstock.models.youtu import Youtu

# What transformers assumes where config.json lacks a field. A null stays null: no factor.
DEFAULTS: dict[str, Any] = {"num_attention_heads": 40, "num_key_value_heads": 40}
DEFAULTS |= {"kv_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64}
DEFAULTS |= {"num_hidden_layers": 62, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5}
FACTORS = {"q_lora_rank": 768, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}


class MiniCpm3(Youtu):
    """MiniCPM3 4B."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the factors."""
        fields = Fields(
            layered(
                {name: raw.get(name, default) for name, default in FACTORS.items()}, raw, DEFAULTS
            )
        )
        hidden = fields.count("hidden_size")
        value = fields.count("v_head_dim", hidden // fields.count("num_attention_heads"))
        spec = super().read_config(
            layered({"v_head_dim": value, "rope_interleave": False}, fields.raw)
        )
        depth = fields.optional("scale_depth") or len(spec.layers) ** 0.5
        base = fields.optional("dim_model_base") or hidden
        multiplier = depth / len(spec.layers) ** 0.5
        return replace(
            spec,
            residual=replace(spec.residual, multiplier=multiplier),
            embedding_scale=fields.positive("scale_emb"),
            logits_scale=base / hidden,
        )
