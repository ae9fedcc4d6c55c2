"""nanochat: norms without weights, also of embeddings; squared ReLU without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    NormSpec,
    QkNorm,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_mlp,
    read_residual,
    read_rope,
)
from penstock.faults import Unsupported
from penstock.models.decoder import LLAMA_NAMES, Decoder, renamed


class NanoChat(Decoder):
    """nanochat d20 to d34, as transformers stores them."""

    names: ClassVar[Mapping[str, str]] = renamed(
        LLAMA_NAMES,
        input_layernorm=None,
        post_attention_layernorm=None,
        norm=None,
        gate_proj=None,
        up_proj=None,
        down_proj=None,
    ) | {
        "model.layers.{}.mlp.fc1": "blocks.{}.mlp.inner.up",
        "model.layers.{}.mlp.fc2": "blocks.{}.mlp.down",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"final_logit_softcapping": 15.0}))
        fields.require("tie_word_embeddings", False)  # the head would be normalised, too
        norm = NormSpec(fields.positive("rms_norm_eps", 1e-6), learned=False)
        rope = replace(read_rope(fields), backwards=True)
        if rope.kind in ("yarn", "longrope"):
            # The norm of queries and keys follows RoPE. It has no weight, so it may precede a
            # rotation, but these also scale what they rotate.
            raise Unsupported(f"config.json: rope_type {rope.kind!r} is not supported")
        bias, qk_norm = fields.flag("attention_bias"), QkNorm(norm)
        attention = read_attention(fields, rope, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm)
        layer = LayerSpec(attention, read_mlp(fields, "hidden_act", "relu2", gated=False))
        layers = [layer] * fields.count("num_hidden_layers")
        cap = fields.optional("final_logit_softcapping")
        residual = read_residual(fields, norm=norm)
        return read_decoder(fields, layers, residual, logits_softcap=cap, embedding_eps=norm.eps)
