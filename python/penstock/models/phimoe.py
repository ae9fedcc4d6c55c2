"""Phi-3.5-MoE: Mixtral with LayerNorm, biases, LongRoPE and SparseMixer's choice of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    Fields,
    LayerSpec,
    MoeSpec,
    NormKind,
    NormSpec,
    RouterSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_expert_count,
    read_gated,
    read_residual,
    read_rope,
    read_routing,
)
from penstock.models.mixtral import Mixtral


class Phimoe(Mixtral):
    """Phi-3.5-MoE."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"num_key_value_heads": 8}))
        fields.require("num_experts_per_tok", 2)  # SparseMixer chooses two
        window = 0 if fields.raw.get("sliding_window") is None else fields.count("sliding_window")
        bias = fields.flag("attention_bias")
        attention = read_attention(
            fields,
            read_rope(fields, theta=1e6),
            window=window,
            qkv_bias=bias,
            output_bias=bias,
        )
        router = RouterSpec(sparse_mixer=2 * fields.positive("router_jitter_noise", 0.01))
        expert = read_gated(fields, "intermediate_size")
        experts = read_expert_count(fields, "num_local_experts")
        moe = MoeSpec(experts, expert, read_routing(fields), router)
        layers = [LayerSpec(attention, moe)] * fields.count("num_hidden_layers")
        norm = NormSpec(fields.number("rms_norm_eps", 1e-5), NormKind.LAYER, bias=True)
        residual = read_residual(fields, norm=norm)
        # The first is of training, the second is in rope_scaling, too.
        fields.ignore("input_jitter_noise", "original_max_position_embeddings")
        return read_decoder(fields, layers, residual, head_bias=fields.flag("lm_head_bias"))
