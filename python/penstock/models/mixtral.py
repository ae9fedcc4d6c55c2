"""Mixtral 8x7B and 8x22B: Mistral with experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    MoeSpec,
    NormSpec,
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
from penstock.models.decoder import LLAMA_NAMES, Decoder

MOE = "model.layers.{}.block_sparse_moe."
MOE_NAMES = {
    MOE + "gate": "blocks.{}.mlp.router",
    MOE + "experts.{}.w1": "blocks.{}.mlp.experts.{}.gate_up.gate",
    MOE + "experts.{}.w3": "blocks.{}.mlp.experts.{}.gate_up.up",
    MOE + "experts.{}.w2": "blocks.{}.mlp.experts.{}.down",
}


class Mixtral(Decoder):
    """Mixtral; layers may have a sliding window."""

    names: ClassVar[Mapping[str, str]] = {
        module: path for module, path in LLAMA_NAMES.items() if ".mlp." not in module
    } | MOE_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"num_key_value_heads": 8}))
        window = 0 if fields.raw.get("sliding_window") is None else fields.count("sliding_window")
        attention = read_attention(fields, read_rope(fields, theta=1e6), window=window)
        expert = read_gated(fields, "intermediate_size")
        experts = read_expert_count(fields, "num_local_experts")
        moe = MoeSpec(experts, expert, read_routing(fields, renormalise=True))
        layers = [LayerSpec(attention, moe)] * fields.count("num_hidden_layers")
        residual = read_residual(fields, norm=NormSpec(fields.number("rms_norm_eps", 1e-5)))
        return read_decoder(fields, layers, residual)
