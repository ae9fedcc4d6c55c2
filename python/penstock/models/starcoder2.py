"""StarCoder2: Llama with LayerNorm, biases, and feed-forward layers without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_layer_norm,
    read_mlp,
    read_residual,
    read_rope,
)
from penstock.models.decoder import LLAMA_NAMES, Decoder, renamed

LAYER = "model.layers.{}."
FIXED = {"norm_type": "layer_norm", "mlp_type": "default", "scale_attn_weights": True}


class Starcoder2(Decoder):
    """StarCoder2 3B, 7B and 15B."""

    names: ClassVar[Mapping[str, str]] = renamed(
        LLAMA_NAMES, gate_proj=None, up_proj=None, down_proj=None
    ) | {
        LAYER + "mlp.c_fc": "blocks.{}.mlp.inner.up",
        LAYER + "mlp.c_proj": "blocks.{}.mlp.down",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"tie_word_embeddings": True}))
        for name, value in FIXED.items():
            fields.require(name, value)
        fields.ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
        fields.ignore("activation_function", "layer_norm_epsilon")  # transformers reads others
        bias = fields.flag("use_bias", True)
        window = 0 if raw.get("sliding_window") is None else fields.count("sliding_window")
        attention = read_attention(
            fields, read_rope(fields), window=window, qkv_bias=bias, output_bias=bias
        )
        mlp = read_mlp(fields, "hidden_act", "gelu_pytorch_tanh", bias=bias, gated=False)
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        norm = read_layer_norm(fields, "norm_epsilon")
        return read_decoder(fields, layers, read_residual(fields, norm=norm))
