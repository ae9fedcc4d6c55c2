"""Gemma 1: Llama with scaled embeddings, norms by 1 + w and a GELU gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.config import (
    Activation,
    Fields,
    LayerSpec,
    MlpSpec,
    NormKind,
    NormSpec,
    Specification,
    layered,
    read_activation,
    read_attention,
    read_decoder,
    read_residual,
    read_rope,
)
from penstock.models.llama import Llama

DEFAULTS = {"head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True}


class Gemma(Llama):
    """Gemma 2B and 7B, CodeGemma."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, DEFAULTS))
        fields.require_unset("use_bidirectional_attention")
        fields.require("hidden_activation", "gelu_pytorch_tanh")
        activation = read_activation(fields, "hidden_act", "gelu_pytorch_tanh")
        if activation is Activation.GELU:  # what the first checkpoints say, and do not mean
            activation = Activation.GELU_TANH
        bias = fields.flag("attention_bias")
        layer = LayerSpec(
            read_attention(fields, read_rope(fields), qkv_bias=bias, output_bias=bias),
            MlpSpec(fields.count("intermediate_size"), activation),
        )
        norm = NormSpec(fields.number("rms_norm_eps", 1e-6), NormKind.RMS_PLUS_ONE)
        residual = read_residual(fields, norm=norm)
        spec = read_decoder(fields, [layer] * fields.count("num_hidden_layers"), residual)
        return replace(spec, embedding_scale=residual.hidden**0.5)
