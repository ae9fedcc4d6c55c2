"""Reads config.json of Llama 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import CHUNKED, FULL, Fields, LayerSpec, MlpSpec, MoeSpec, Specification
from penstock.faults import BadModel

DEFAULTS = {"head_dim": 128, "rms_norm_eps": 1e-5, "intermediate_size_mlp": 16384}


def read_llama4(raw: Mapping[str, Any]) -> Specification:
    """Reads the fields, with transformers' defaults. Raises BadModel."""
    fields = Fields(config.layered(raw, DEFAULTS))
    count, residual = fields.count("num_hidden_layers"), config.read_residual(fields)
    rotates = config.read_rotating_layers(fields, count)
    kinds = config.read_layer_types(fields, [CHUNKED if r else FULL for r in rotates], CHUNKED)
    bias = fields.flag("attention_bias")
    rope = replace(config.read_rope(fields, theta=500_000.0), interleaved=True)
    attention = config.read_attention(fields, rope, qkv_bias=bias, output_bias=bias)
    # The norm is of rotated queries and keys, but has no weight, and a rotation keeps lengths.
    norms = fields.flag("use_qk_norm", True)
    norm = config.QkNorm(replace(residual.norm, learned=False)) if norms else None
    rotating = replace(attention, qk_norm=norm)
    still = replace(attention, rope=None, position_scale=_position_scale(fields))
    mlps = _mlps(fields, count)
    layers = [LayerSpec(rotating if r else still, mlps[i]) for i, r in enumerate(rotates)]
    window = fields.count("attention_chunk_size", 8192)
    windows = [window * (kind == CHUNKED) for kind in kinds]
    return config.read_decoder(fields, layers, residual).with_attention(windows, aligned=True)


def _position_scale(fields: Fields) -> config.PositionScale | None:
    beta, original = fields.number("attn_scale", 0.1), fields.count("floor_scale", 8192)
    tuned = fields.raw.get("attn_temperature_tuning", True)  # a number in older files
    return config.PositionScale(beta, original, offset=1) if tuned else None


def _mlps(fields: Fields, count: int) -> list[MlpSpec | MoeSpec]:
    """The feed-forward layer of each layer."""
    fields.require("num_experts_per_tok", 1)
    routing = config.read_routing(fields, top_k=1, score=Score.SIGMOID)
    expert = config.read_gated(fields, "intermediate_size")
    moe = MoeSpec(
        config.read_expert_count(fields, "num_local_experts"),
        expert,
        routing,
        shared=expert,
        storage=config.ExpertStorage.TRANSPOSED,
    )
    dense = config.read_gated(fields, "intermediate_size_mlp")
    step, sparse = fields.count("interleave_moe_layer_step", 1), fields.raw.get("moe_layers")
    if sparse is None:
        sparse = list(range(step - 1, count, step))
    if not isinstance(sparse, list) or not all(type(layer) is int for layer in sparse):
        raise BadModel(f"config.json: moe_layers must be a list of layers, found {sparse!r}")
    return [moe if layer in sparse else dense for layer in range(count)]
