"""OPT: learned positions, LayerNorm, biases, ReLU without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    NormKind,
    NormSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_mlp,
    read_residual,
)
from penstock.models.decoder import Decoder

LAYER = "model.decoder.layers.{}."


class Opt(Decoder):
    """OPT 125M to 66B, 350M excepted, and Galactica. Older checkpoints have shorter names."""

    names: ClassVar[Mapping[str, str]] = {
        "model.decoder.embed_tokens": "embedding",
        "model.decoder.embed_positions": "positions",
        LAYER + "self_attn_layer_norm": "blocks.{}.attention_norm",
        LAYER + "self_attn.q_proj": "blocks.{}.attention.qkv.q",
        LAYER + "self_attn.k_proj": "blocks.{}.attention.qkv.k",
        LAYER + "self_attn.v_proj": "blocks.{}.attention.qkv.v",
        LAYER + "self_attn.out_proj": "blocks.{}.attention.out",
        LAYER + "final_layer_norm": "blocks.{}.mlp_norm",
        LAYER + "fc1": "blocks.{}.mlp.inner.up",
        LAYER + "fc2": "blocks.{}.mlp.down",
        "model.decoder.final_layer_norm": "norm",
        "lm_head": "head",
    }
    older: ClassVar[Mapping[str, str]] = {"decoder.": "model.decoder."}

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        inner = {"intermediate_size": Fields(raw).count("ffn_dim")}
        fields = Fields(layered(inner, raw, {"tie_word_embeddings": True}))
        # 350M has norms behind its layers, and embeddings that are narrower than its layers.
        fields.require("do_layer_norm_before", True)
        fields.require("word_embed_proj_dim", fields.count("hidden_size"))
        fields.require_unset("_remove_final_layer_norm")
        fields.require("learned_embeddings", True)  # of Galactica
        fields.ignore("init_std", "layerdrop", "prefix")
        bias = fields.flag("enable_bias", True)
        affine = fields.flag("layer_norm_elementwise_affine", True)
        norm = NormSpec(1e-5, NormKind.LAYER, bias=affine, learned=affine)
        attention = read_attention(fields, None, qkv_bias=bias, output_bias=bias)
        mlp = read_mlp(fields, "activation_function", "relu", bias=bias, gated=False)
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        residual = read_residual(fields, norm=norm)
        return read_decoder(fields, layers, residual, learned_positions=True, position_offset=2)
