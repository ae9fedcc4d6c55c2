"""Phi-3, Phi-3.5 and Phi-4 (text): Llama with fused matrices, LongRoPE and a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    Fields,
    LayerSpec,
    MlpSpec,
    NormSpec,
    Specification,
    layered,
    read_activation,
    read_attention,
    read_decoder,
    read_residual,
    read_rope,
)
from penstock.faults import Unsupported
from penstock.models.decoder import LLAMA_NAMES, Decoder

LAYER = "model.layers.{}."


class Phi3(Decoder):
    """Phi-3 mini and medium, Phi-3.5 mini, Phi-4 and Phi-4 mini."""

    names = {
        module: path
        for module, path in LLAMA_NAMES.items()
        if not path.startswith(("blocks.{}.attention.qkv", "blocks.{}.mlp.gate_up"))
    } | {
        LAYER + "self_attn.qkv_proj": "blocks.{}.attention.qkv",
        LAYER + "mlp.gate_up_proj": "blocks.{}.mlp.gate_up",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(_rope(raw), raw, {"original_max_position_embeddings": 4096}))
        fields.require_unset("attention_bias", "mlp_bias")
        rope = read_rope(fields, partial=True)
        if rope.kind not in ("default", "longrope"):
            raise Unsupported(f"config.json: rope_type {rope.kind!r} is not supported for Phi-3")
        window = 0 if raw.get("sliding_window") is None else fields.count("sliding_window")
        activation = read_activation(fields, "hidden_act", "silu")
        layer = LayerSpec(
            read_attention(fields, rope, window=window),
            MlpSpec(fields.count("intermediate_size"), activation),
        )
        residual = read_residual(fields, norm=NormSpec(fields.number("rms_norm_eps", 1e-5)))
        return read_decoder(fields, [layer] * fields.count("num_hidden_layers"), residual)


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """LongRoPE under the names of its early checkpoints, as transformers reads them."""
    for field in ("rope_scaling", "rope_parameters"):
        rope = raw.get(field)
        if isinstance(rope, dict) and rope:
            kind = rope.get("rope_type") or rope.get("type")
            return {field: {**rope, "rope_type": "longrope" if kind in ("su", "yarn") else kind}}
    return {}
