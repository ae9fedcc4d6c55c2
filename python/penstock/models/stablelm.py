"""StableLM: Llama with LayerNorm, and RoPE on a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    Fields,
    LayerSpec,
    Placement,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_layer_norm,
    read_mlp,
    read_residual,
    read_rope,
)
from penstock.models.decoder import Decoder


class StableLm(Decoder):
    """StableLM 3B, Zephyr 3B and StableLM 2 1.6B."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"partial_rotary_factor": 0.25}))
        fields.require_unset("qk_layernorm")
        fields.require("rotary_scaling_factor", 1.0)
        fields.ignore("norm_eps", "rope_pct", "use_norm_bias")  # transformers reads others
        layer = LayerSpec(
            read_attention(
                fields, read_rope(fields, partial=True), qkv_bias=fields.flag("use_qkv_bias")
            ),
            read_mlp(fields, "hidden_act", "silu"),
        )
        parallel = fields.flag("use_parallel_residual")
        residual = read_residual(
            fields,
            norm=read_layer_norm(fields, "layer_norm_eps"),
            placement=Placement.PARALLEL if parallel else Placement.PRE,
        )
        return read_decoder(fields, [layer] * fields.count("num_hidden_layers"), residual)
