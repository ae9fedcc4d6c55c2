"""The Llama family: Llama 2 to 3.3, TinyLlama, Mistral and Qwen2 differ only in their config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    FULL,
    SLIDING,
    Fields,
    LayerSpec,
    MlpSpec,
    Specification,
    read_attention,
    read_decoder,
    read_layer_types,
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


class Mistral(Llama):
    """Mistral 7B and its kin: every layer slides, unless sliding_window is null."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the window of all layers."""
        spec = super().read_config(raw)
        window = 0 if raw.get("sliding_window") is None else Fields(raw).count("sliding_window")
        return spec.with_attention([window] * len(spec.layers))


class Qwen2(Llama):
    """Qwen2 and 2.5: biases on q, k and v; layers from max_window_layers on may slide."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds biases and windows; `layer_types` wins over the older fields, as in transformers."""
        spec, fields = super().read_config(raw), Fields(raw)
        slides = fields.flag("use_sliding_window") and raw.get("sliding_window") is not None
        window = fields.count("sliding_window") if slides else 0
        first = int(fields.number("max_window_layers", 28))
        default = [SLIDING if i >= first else FULL for i in range(len(spec.layers))]
        windows = [window * (k == SLIDING) for k in read_layer_types(fields, default)]
        return spec.with_attention(windows, qkv_bias=True, output_bias=False)
