"""GPT-J: attention beside the feed-forward layer, RoPE of neighbours on a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    LayerSpec,
    Placement,
    RopeSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_gpt_names,
    read_layer_norm,
    read_mlp,
    read_residual,
)
from penstock.models.decoder import Decoder

LAYER = "transformer.h.{}."


class GptJ(Decoder):
    """GPT-J 6B and its variants; the head has a bias."""

    names: ClassVar[Mapping[str, str]] = {
        "transformer.wte": "embedding",
        LAYER + "ln_1": "blocks.{}.attention_norm",
        LAYER + "attn.q_proj": "blocks.{}.attention.qkv.q",
        LAYER + "attn.k_proj": "blocks.{}.attention.qkv.k",
        LAYER + "attn.v_proj": "blocks.{}.attention.qkv.v",
        LAYER + "attn.out_proj": "blocks.{}.attention.out",
        LAYER + "mlp.fc_in": "blocks.{}.mlp.inner.up",
        LAYER + "mlp.fc_out": "blocks.{}.mlp.down",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    }
    ignored = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = read_gpt_names(layered(raw, {"tie_word_embeddings": False}))
        fields.require("rotary", True)
        fields.require("scale_attn_weights", True)
        dims = fields.count("rotary_dim", 64)
        width = fields.count("hidden_size") // fields.count("num_attention_heads")
        rope = RopeSpec("default", 10000.0, fraction=dims / width, interleaved=True)
        mlp = read_mlp(fields, "activation_function", "gelu_new", bias=True, gated=False)
        layer = LayerSpec(read_attention(fields, rope), mlp)
        norm = read_layer_norm(fields, "layer_norm_epsilon")
        residual = read_residual(fields, norm=norm, placement=Placement.PARALLEL)
        layers = [layer] * fields.count("num_hidden_layers")
        return read_decoder(fields, layers, residual, head_bias=True)
