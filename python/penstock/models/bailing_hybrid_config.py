"""Reads Ling 3.0's two kinds of layers from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    FULL,
    LINEAR,
    Fields,
    KimiDeltaSpec,
    LayerSpec,
    RouterSpec,
    layered,
    read_gated,
    read_head_gated_latent_attention,
    read_hybrid_types,
    read_listed_sparse_layers,
    read_residual,
    read_shared_moe,
    read_sigmoid_routing,
)
from penstock.faults import BadModel
from penstock.models.kimi_linear_config import NAMES

# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128}
DEFAULTS |= {"num_hidden_layers": 42, "max_position_embeddings": 262_144, "rope_theta": 6e6}
DEFAULTS |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
DEFAULTS |= {"v_head_dim": 128, "layer_group_size": 6, "short_conv_kernel_size": 4}
DEFAULTS |= {"num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8}
DEFAULTS |= {"topk_group": 4, "routed_scaling_factor": 2.5, "first_k_dense_replace": 2}
DEFAULTS |= {"moe_intermediate_size": 768, "kda_lower_bound": -5.0}


def read_fields(raw: Mapping[str, Any]) -> Fields:
    """The fields under other families' names, with transformers' defaults."""
    found = {new: raw[old] for old, new in NAMES.items() if raw.get(old) is not None}
    return Fields(layered(found, raw, DEFAULTS))


def read_layers(raw: Mapping[str, Any]) -> list[LayerSpec]:
    """All layers. Raises BadModel."""
    fields = read_fields(raw)
    fields.ignore("linear_num_heads", "linear_conv_kernel_dim", "pretraining_tp")
    fields.ignore("mtp_loss_scaling_factor")
    fields.require_at_most("num_nextn_predict_layers", 1)
    delta, full = _delta(fields), read_head_gated_latent_attention(fields)
    router = RouterSpec(correction=True, float32=True)
    experts = read_shared_moe(fields, read_sigmoid_routing(fields), router)
    dense = read_gated(fields, "intermediate_size")
    layers, period = fields.count("num_hidden_layers"), fields.count("layer_group_size")
    default = [LINEAR if (layer + 1) % period else FULL for layer in range(layers)]
    kinds = read_hybrid_types(fields, default, LINEAR)
    return [
        LayerSpec(full if kind == FULL else delta, experts if has_experts else dense)
        for kind, has_experts in zip(kinds, read_listed_sparse_layers(fields, layers), strict=True)
    ]


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
