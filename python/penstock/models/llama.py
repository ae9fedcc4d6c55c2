"""The Llama family: Llama 2 to 3.3, TinyLlama and Mistral differ only in their config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    Fields,
    LayerSpec,
    MlpSpec,
    Renamed,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_rope,
)
from penstock.models.decoder import Decoder


class Llama(Decoder):
    """Llama 2, 3, 3.1 to 3.3, TinyLlama."""

    ignored: tuple[str, ...] = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields that all of the family share, and Llama's biases. Raises BadModel."""
        fields = Fields(raw)
        fields.require("hidden_act", "silu")
        bias = fields.flag("attention_bias")
        attention = read_attention(fields, read_rope(fields), qkv_bias=bias, output_bias=bias)
        mlp = MlpSpec(fields.count("intermediate_size"), bias=fields.flag("mlp_bias"))
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        return read_decoder(fields, layers)


class FirstLlama(Llama):
    """Llama 1 as its first conversions name it."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the length under its older name, with transformers' default."""
        older = Renamed(raw, {"max_sequence_length": "max_position_embeddings"})
        return super().read_config(layered(raw, older, {"max_position_embeddings": 2048}))


class Mistral(Llama):
    """Mistral 7B and similar: every layer has a sliding window, unless sliding_window is null."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the window of all layers."""
        spec = super().read_config(raw)
        window = 0 if raw.get("sliding_window") is None else Fields(raw).count("sliding_window")
        return spec.with_attention([window] * len(spec.layers))
