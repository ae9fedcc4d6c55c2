"""Reads GLM-5-next's two kinds of layers from config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock import config
from penstock.config import (
    FULL,
    LINEAR,
    Activation,
    Fields,
    KimiDeltaSpec,
    LayerSpec,
    MlpSpec,
    Specification,
)
from penstock.faults import BadModel

# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"num_hidden_layers": 45, "max_position_embeddings": 1 << 20}
DEFAULTS |= {"num_attention_heads": 64, "linear_num_heads": 64, "rms_norm_eps": 1e-5}
DEFAULTS |= {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 0}
DEFAULTS |= {"qk_nope_head_dim": 256, "v_head_dim": 256, "index_n_heads": 32}
DEFAULTS |= {"index_head_dim": 128, "index_topk": 2048, "index_kpool": 16}
DEFAULTS |= {"n_shared_experts": 1, "num_experts_per_tok": 8, "routed_scaling_factor": 2.5}
DEFAULTS |= {"first_k_dense_replace": 3, "moe_intermediate_size": 2048}


def read_glm5_next(raw: Mapping[str, Any]) -> Specification:
    """Reads all fields. Raises BadModel."""
    fields, linear = Fields(config.layered(raw, DEFAULTS)), config.read_kimi_section(raw)
    fields.require("swiglu_limit", 10.0)
    fields.require("scoring_func", "sigmoid")
    fields.require("topk_method", "noaux_tc")
    fields.require("moe_layer_freq", 1)
    fields.ignore("ep_size")
    fields.require_at_most("num_nextn_predict_layers", 1)
    streams = config.read_sinkhorn(fields, averaged=True)
    residual = config.read_residual(fields, streams=streams)
    delta = replace(
        config.read_kimi_delta(fields, linear), bound=config.read_decay_bound(fields, linear)
    )
    return config.read_decoder(fields, _layers(fields, delta), residual)


def _layers(fields: Fields, delta: KimiDeltaSpec) -> list[LayerSpec]:
    count, full = fields.count("num_hidden_layers"), config.read_pooled_indexed_attention(fields)
    moe, dense = config.read_corrected_moe(fields), config.read_gated(fields, "intermediate_size")
    assert moe.shared is not None
    experts = replace(moe, expert=_limited(moe.expert), shared=_limited(moe.shared))
    sparse = config.read_listed_sparse_layers(fields, count)
    kinds, shared = _kinds(fields, count), config.read_shared_indexers(fields, count)
    if shared[kinds.index(FULL)]:
        raise BadModel(
            "config.json: indexer_types must have full for the first layer that is not linear"
        )
    layers = [
        LayerSpec(full if kind == FULL else delta, experts if has_experts else _limited(dense))
        for kind, has_experts in zip(kinds, sparse, strict=True)
    ]
    return config.with_shared_indexers(layers, shared)


def _limited(mlp: MlpSpec) -> MlpSpec:
    return replace(mlp, activation=Activation.LIMITED_SILU)


def _kinds(fields: Fields, count: int) -> Sequence[str]:
    """The kind of each layer; every fourth has attention where config.json does not say it."""
    listed = fields.raw.get("layer_types")
    if isinstance(listed, list):
        listed = [FULL if kind == "indexed_attention" else kind for kind in listed]
    named = Fields(config.layered({"layer_types": listed}, fields.raw))
    default = [FULL if layer % 4 == 3 else LINEAR for layer in range(count)]
    return config.read_hybrid_types(named, default, LINEAR)
