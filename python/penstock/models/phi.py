"""Phi-1, 1.5 and 2: attention beside the feed-forward layer, LayerNorm, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

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
from penstock.models.decoder import LLAMA_NAMES, Decoder, renamed

LAYER = "model.layers.{}."


class Phi(Decoder):
    """Phi-1, 1.5 and 2: RoPE on a part of each head; the head has a bias too."""

    names: ClassVar[Mapping[str, str]] = renamed(
        LLAMA_NAMES,
        norm="final_layernorm",
        o_proj="dense",
        post_attention_layernorm=None,
        gate_proj=None,
        up_proj=None,
        down_proj=None,
    ) | {
        LAYER + "mlp.fc1": "blocks.{}.mlp.inner.up",
        LAYER + "mlp.fc2": "blocks.{}.mlp.down",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"partial_rotary_factor": 0.5}))
        fields.require_unset("qk_layernorm")
        rope = read_rope(fields, partial=True)
        attention = read_attention(fields, rope, qkv_bias=True, output_bias=True)
        mlp = read_mlp(fields, "hidden_act", "gelu_new", bias=True, gated=False)
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        norm = read_layer_norm(fields, "layer_norm_eps")
        residual = read_residual(fields, norm=norm, placement=Placement.PARALLEL)
        return read_decoder(fields, layers, residual, head_bias=True)
