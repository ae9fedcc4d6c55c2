"""GLM-4, dense: RoPE of neighbours in a part of each head, fused gate and up matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    NormSpec,
    Placement,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_mlp,
    read_residual,
    read_rope,
)
from penstock.models.decoder import LLAMA_NAMES, Decoder, renamed

LAYER = "model.layers.{}."
DEFAULTS = {"partial_rotary_factor": 0.5, "head_dim": 128}


class Glm(Decoder):
    """GLM-4 9B (the checkpoints for transformers) and GLM-Edge."""

    names: ClassVar[Mapping[str, str]] = renamed(LLAMA_NAMES, gate_proj=None, up_proj=None) | {
        LAYER + "mlp.gate_up_proj": "blocks.{}.mlp.gate_up"
    }
    placement: ClassVar[Placement] = Placement.PRE

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, DEFAULTS))
        rope = replace(read_rope(fields, partial=True), interleaved=True)
        layer = LayerSpec(
            read_attention(fields, rope, qkv_bias=fields.flag("attention_bias", True)),
            read_mlp(fields, "hidden_act", "silu"),
        )
        norm = NormSpec(fields.number("rms_norm_eps", 1.5625e-7))
        residual = read_residual(fields, norm=norm, placement=cls.placement)
        return read_decoder(fields, [layer] * fields.count("num_hidden_layers"), residual)


class Glm4(Glm):
    """GLM-4 0414 and GLM-Z1, 9B and 32B: norms on both sides of each layer."""

    names: ClassVar[Mapping[str, str]] = {
        **Glm.names,
        LAYER + "post_self_attn_layernorm": "blocks.{}.attention_output_norm",
        LAYER + "post_mlp_layernorm": "blocks.{}.mlp_output_norm",
    }
    placement: ClassVar[Placement] = Placement.SANDWICH
