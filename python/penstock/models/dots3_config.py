"""Reads Dots3-Note's layers from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock import config
from penstock.config import SLIDING, AttentionSpec, Fields, LayerSpec, MoeSpec, Specification
from penstock.models import dots3_published as published

# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"num_hidden_layers": 46, "max_position_embeddings": 524_288}
DEFAULTS |= {"num_attention_heads": 128, "q_lora_rank": 1024, "kv_lora_rank": 512}
DEFAULTS |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEFAULTS |= {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
DEFAULTS |= {"num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 1536}
DEFAULTS |= {"rms_norm_eps": 1e-5}


def read_dots3(raw: Mapping[str, Any]) -> Specification:
    """Reads all fields. Raises BadModel."""
    fields = Fields(config.layered(raw, DEFAULTS))
    fields.require_unset("mlp_bias")
    fields.require_at_most("num_nextn_predict_layers", 1)
    # Perhaps no layer has an indexer, or all have sizes of their own.
    fields.ignore("index_n_heads", "index_head_dim", "index_topk", *published.SLIDING_SIZES)
    count = fields.count("num_hidden_layers")
    kinds = published.read_kinds(fields, count)
    attentions = [
        _attention(fields, kind, own)
        for kind, own in zip(kinds, published.read_sizes(fields, kinds), strict=True)
    ]
    moe, dense = _experts(fields), config.read_gated(fields, "intermediate_size")
    layers = [
        LayerSpec(attention, moe if has_experts else dense)
        for attention, has_experts in zip(
            attentions, config.read_frequent_sparse_layers(fields, count), strict=True
        )
    ]
    return config.read_decoder(fields, layers)


def _attention(fields: Fields, kind: str, own: Mapping[str, Any]) -> AttentionSpec:
    """The attention of a layer with these sizes of its `own`. Both latents have factors; that of
    the queries' is part of the scale, since it does not change what an indexer chooses."""
    theta = {"rope_theta": published.read_theta(fields, kind)}
    rope = {"rope_parameters": theta, "rope_scaling": None}
    sizes = Fields(config.layered(rope, own, fields.raw))
    sizes.require("rope_interleave", True)
    if kind == published.INDEXED:
        attention = config.read_head_gated_indexed_attention(sizes)
    else:
        attention = config.read_head_gated_latent_attention(sizes)
    latent, hidden = attention.latent, fields.count("hidden_size")
    assert latent is not None
    if kind == SLIDING:
        sizes.require("head_dim", latent.still + latent.rotated)
    norm = config.read_residual(fields).norm
    factor = (hidden / latent.rank) ** 0.5
    window = fields.count("sliding_window", fields.count("sliding_window_size", 512))
    return replace(
        attention,
        scale=attention.scale * (hidden / sizes.count("q_lora_rank")) ** 0.5,
        window=window if kind == SLIDING else 0,
        latent=replace(latent, norm=norm, factor=factor, rotated_norm=True),
    )


def _experts(fields: Fields) -> MoeSpec:
    """The layers with experts. Shared experts have a size of their own."""
    moe, size = config.read_corrected_moe(fields), "shared_experts_intermediate_size"
    shared = fields.count("moe_shared_expert_intermediate_size", fields.count(size, 1536))
    assert moe.shared is not None
    inner = shared * fields.count("n_shared_experts")
    return replace(moe, shared=replace(moe.shared, intermediate=inner))
