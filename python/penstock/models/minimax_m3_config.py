"""Reads the config.json of MiniMax-M3's text: as published, or as transformers writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import FULL, Activation, Fields, LayerSpec, MlpSpec, MoeSpec, NormKind, QkNorm
from penstock.faults import Unsupported
from penstock.models.minimax_m3_published import SPARSE, in_flat_fields

DEFAULTS = {"hidden_size": 6144, "intermediate_size": 3072, "num_hidden_layers": 60}
DEFAULTS |= {"num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128}
DEFAULTS |= {"vocab_size": 200064, "max_position_embeddings": 524288, "num_local_experts": 128}
DEFAULTS |= {"num_experts_per_tok": 4, "dense_intermediate_size": 12288}
DEFAULTS |= {"shared_intermediate_size": 3072, "index_n_heads": 4, "index_head_dim": 128}
DEFAULTS |= {"index_block_size": 128, "index_topk_blocks": 16, "index_local_blocks": 1}
# What transformers computes whatever these fields are.
FIXED: dict[str, Any] = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "scoring_func": "sigmoid"}
FIXED |= {"qk_norm_type": "per_head", "n_shared_experts": 1, "attention_output_gate": False}
FIXED |= dict.fromkeys(("use_gemma_norm", "use_qk_norm", "use_routing_bias"), True)
# Of layers that predict further tokens, which are not loaded.
UNUSED = ("num_mtp_modules", "num_nextn_predict_layers", "mtp_transformer_layers", "use_mtp")


def read_minimax_m3(raw: Mapping[str, Any]) -> config.Specification:
    """Raises BadModel."""
    fields = Fields(config.layered(in_flat_fields(raw), raw, DEFAULTS))
    for name, value in FIXED.items():
        fields.require(name, value)
    if fields.raw.get("hidden_act") not in (None, "silu", "swigluoai"):
        raise Unsupported(f"config.json: hidden_act {fields.raw['hidden_act']!r} is not supported")
    fields.ignore(*UNUSED)
    norm = config.NormSpec(fields.number("rms_norm_eps", 1e-6), NormKind.RMS_PLUS_ONE)
    rope = config.read_rope(config.with_rotary_dim(fields), theta=5e6, partial=True)
    full = config.read_attention(fields, rope, qk_norm=QkNorm(norm))
    count = fields.count("num_hidden_layers")
    kinds = config.read_layer_types(fields, [FULL] * count, SPARSE)
    sparse = full
    if SPARSE in kinds:
        indexer = config.read_head_block_indexer(fields, norm, full.kv_heads)
        sparse = config.with_block_indexer(full, indexer)
    experts = config.read_listed_sparse_layers(
        Fields(config.layered(fields.raw, {"first_k_dense_replace": 0})), count
    )
    dense, moe = _mlp(fields, "dense_intermediate_size"), _experts(fields)
    layers = [
        LayerSpec(full if kind == FULL else sparse, moe if has_experts else dense)
        for kind, has_experts in zip(kinds, experts, strict=True)
    ]
    return config.read_decoder(fields, layers, config.read_residual(fields, norm=norm))


def _mlp(fields: Fields, size: str) -> MlpSpec:
    return MlpSpec(fields.count(size), Activation.CLAMPED_SWIGLU)


def _experts(fields: Fields) -> MoeSpec:
    scale = fields.positive("routed_scaling_factor", 2.0)
    routing = config.read_routing(fields, score=Score.SIGMOID, renormalise=True, scale=scale)
    # transformers rounds logits of the router to the model's dtype, which may swap experts.
    router = config.RouterSpec(correction=True, float32=True)
    expert, shared = _mlp(fields, "intermediate_size"), _mlp(fields, "shared_intermediate_size")
    experts = config.read_expert_count(fields, "num_local_experts")
    return MoeSpec(experts, expert, routing, router, shared)
