"""Reads Kimi Linear's two kinds of layers from config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config import (
    FULL,
    LINEAR,
    AttentionSpec,
    Fields,
    KimiDeltaSpec,
    LayerSpec,
    Renamed,
    Specification,
    layered,
    read_corrected_moe,
    read_decoder,
    read_gated,
    read_hybrid_types,
    read_kimi_delta,
    read_kimi_kinds,
    read_kimi_section,
    read_latent_attention_without_rope,
    read_listed_sparse_layers,
)

# Kimi's names of fields that other families have.
NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
DEFAULTS: dict[str, int | float] = {
    "kv_lora_rank": 512,
    "max_position_embeddings": 1 << 20,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.446,
    "v_head_dim": 128,
}


def read_fields(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> Fields:
    """The fields under other families' names, with `defaults`."""
    return Fields(layered(Renamed(raw, NAMES), raw, defaults))


def read_kimi_linear(raw: Mapping[str, Any]) -> Specification:
    """Reads all fields. Raises BadModel."""
    fields, linear = read_fields(raw, DEFAULTS), read_kimi_section(raw)
    fields.ignore("rope_theta")  # nothing rotates
    fields.require("mla_use_nope", True)
    fields.require("moe_layer_freq", 1)
    fields.require("moe_router_activation_func", "sigmoid")
    fields.require("use_grouped_topk", True)
    fields.require("num_nextn_predict_layers", 0)
    full, delta = read_latent_attention_without_rope(fields), read_kimi_delta(fields, linear)
    kinds = read_kimi_kinds(linear, fields.count("num_hidden_layers"))
    return read_decoder(fields, read_layers(fields, full, delta, kinds))


def read_layers(
    fields: Fields, full: AttentionSpec, delta: KimiDeltaSpec, default: Sequence[str]
) -> list[LayerSpec]:
    """All layers: `full` or `delta`, by `default` where config.json has none. Raises BadModel."""
    experts = read_corrected_moe(fields, "num_experts")
    dense = read_gated(fields, "intermediate_size")
    kinds = read_hybrid_types(fields, default, LINEAR)
    sparse = read_listed_sparse_layers(fields, len(kinds))
    return [
        LayerSpec(full if kind == FULL else delta, experts if has_experts else dense)
        for kind, has_experts in zip(kinds, sparse, strict=True)
    ]
