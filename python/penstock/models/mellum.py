"""Mellum 2: Qwen3-MoE whose layers may have windows, with a RoPE of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock import config
from penstock.config import FULL, SLIDING, AttentionSpec, Fields, QkNorm, Specification, layered
from penstock.models.qwen3_moe import Qwen3Moe

DEFAULTS = {
    "first_k_dense_replace": 0,
    "head_dim": 128,
    "norm_topk_prob": True,
    "num_key_value_heads": 4,
    "sliding_window": 1024,
}
ROPES = {FULL: {"rope_theta": 500_000.0}, SLIDING: {"rope_theta": 10_000.0}}


class Mellum(Qwen3Moe):
    """Mellum 2 12B-A2.5B. What predicts several tokens is not loaded."""

    ignored: tuple[str, ...] = (r"mtp\..*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `mlp_layer_types`, which say what `mlp_only_layers` do in Qwen3-MoE."""
        fields = Fields(layered(config.with_rope(raw, ROPES), DEFAULTS))
        for name in ("num_mtp_layers", "num_nextn_predict_layers"):
            fields.require_at_most(name, 1)
        fields.ignore("mtp_layer_types", "mtp_mlp_layer_types")
        sparse = config.read_listed_sparse_layers(fields, fields.count("num_hidden_layers"))
        dense = [layer for layer, has_experts in enumerate(sparse) if not has_experts]
        return super().read_config(layered({"mlp_only_layers": dense}, fields.raw))

    @classmethod
    def attention(cls, fields: Fields, layers: int) -> list[AttentionSpec]:
        """Returns the attention of each layer."""
        kinds = config.read_layer_types(fields, [FULL] * layers)
        ropes = {kind: config.read_rope(fields, layer_type=kind) for kind in kinds}
        window = fields.count("sliding_window") if SLIDING in kinds else 0
        bias, norm = fields.flag("attention_bias"), config.read_residual(fields).norm
        one = config.read_attention(
            fields, None, qkv_bias=bias, output_bias=bias, qk_norm=QkNorm(norm)
        )
        return [replace(one, rope=ropes[kind], window=window * (kind == SLIDING)) for kind in kinds]
