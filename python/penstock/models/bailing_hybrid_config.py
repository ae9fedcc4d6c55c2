"""Reads Ling 3.0's two kinds of layers from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    FULL,
    LINEAR,
    Fields,
    KimiDeltaSpec,
    Specification,
    read_decoder,
    read_head_gated_latent_attention,
    read_residual,
)
from penstock.faults import BadModel
from penstock.models.kimi_linear_config import read_fields, read_layers

# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128}
DEFAULTS |= {"num_hidden_layers": 42, "max_position_embeddings": 262_144, "rope_theta": 6e6}
DEFAULTS |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
DEFAULTS |= {"v_head_dim": 128, "layer_group_size": 6, "short_conv_kernel_size": 4}
DEFAULTS |= {"num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8}
DEFAULTS |= {"topk_group": 4, "routed_scaling_factor": 2.5, "first_k_dense_replace": 2}
DEFAULTS |= {"moe_intermediate_size": 768, "kda_lower_bound": -5.0}


def read_bailing_hybrid(raw: Mapping[str, Any]) -> Specification:
    """Reads all fields. Raises BadModel."""
    fields = read_fields(raw, DEFAULTS)
    fields.ignore("linear_num_heads", "linear_conv_kernel_dim", "pretraining_tp")
    fields.ignore("mtp_loss_scaling_factor")
    fields.require_at_most("num_nextn_predict_layers", 1)
    delta, full = _delta(fields), read_head_gated_latent_attention(fields)
    layers, period = fields.count("num_hidden_layers"), fields.count("layer_group_size")
    kinds = [LINEAR if (layer + 1) % period else FULL for layer in range(layers)]
    return read_decoder(fields, read_layers(fields, full, delta, kinds))


def _delta(fields: Fields) -> KimiDeltaSpec:
    fields.require("hidden_act", "silu")
    is_bounded, bound = fields.flag("kda_safe_gate", True), fields.number("kda_lower_bound")
    if is_bounded and bound >= 0:
        raise BadModel(f"config.json: kda_lower_bound must be below 0, found {bound!r}")
    return KimiDeltaSpec(
        heads=fields.count("num_attention_heads"),
        # What transformers writes has qk_rope_head_dim in head_dim.
        head_dim=fields.count("linear_head_dim", fields.count("head_dim")),
        width=fields.count("short_conv_kernel_size"),
        norm=read_residual(fields).norm,
        narrow=False,
        bound=bound if is_bounded else 0.0,
    )
