"""OLMo 1: Llama whose LayerNorm has neither weight nor bias, with bounds of queries, keys and
values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    Fields,
    LayerSpec,
    NormKind,
    NormSpec,
    Specification,
    read_attention,
    read_decoder,
    read_mlp,
    read_residual,
    read_rope,
)
from penstock.models.decoder import LLAMA_NAMES, Decoder, renamed

NORM = NormSpec(1e-5, NormKind.LAYER, learned=False)


class Olmo1(Decoder):
    """OLMo 1B and 7B of 2024, as transformers stores them."""

    names = renamed(LLAMA_NAMES, input_layernorm=None, post_attention_layernorm=None, norm=None)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(raw)
        bias, clip = fields.flag("attention_bias"), fields.optional("clip_qkv")
        attention = read_attention(
            fields, read_rope(fields), qkv_bias=bias, output_bias=bias, clip=clip
        )
        layer = LayerSpec(attention, read_mlp(fields, "hidden_act", "silu"))
        layers = [layer] * fields.count("num_hidden_layers")
        return read_decoder(fields, layers, read_residual(fields, norm=NORM))
