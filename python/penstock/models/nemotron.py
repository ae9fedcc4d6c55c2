"""Nemotron-4 and Minitron: LayerNorm, RoPE on a part of each head, squared ReLU without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    NormKind,
    NormSpec,
    RopeSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_layer_norm,
    read_mlp,
    read_residual,
    read_rope,
)
from penstock.models.arcee import Arcee
from penstock.models.decoder import Decoder

FRACTIONS = "rope_percent", "rope_percentage"  # partial_rotary_factor in the first files


class Nemotron(Decoder):
    """Nemotron-4 and Minitron, whose norms scale by 1 + w."""

    names: ClassVar[Mapping[str, str]] = Arcee.names

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"partial_rotary_factor": 0.5}))
        rope = read_rope(fields, partial=True)
        for name in FRACTIONS:
            fields.require(name, rope.fraction)
        norm = read_layer_norm(fields, "norm_eps")
        return cls.assemble(fields, rope, replace(norm, kind=NormKind.LAYER_PLUS_ONE))

    @staticmethod
    def assemble(fields: Fields, rope: RopeSpec, norm: NormSpec) -> Specification:
        """The specification with this RoPE and this norm."""
        bias = fields.flag("attention_bias")
        attention = read_attention(fields, rope, qkv_bias=bias, output_bias=bias)
        mlp_bias = fields.flag("mlp_bias")
        mlp = read_mlp(fields, "hidden_act", "relu2", bias=mlp_bias, gated=False)
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        return read_decoder(fields, layers, read_residual(fields, norm=norm))
