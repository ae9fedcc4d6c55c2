"""MPT: ALiBi, LayerNorm without bias, no biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import Fields, LayerSpec, Specification
from penstock.faults import Unsupported
from penstock.models.decoder import Decoder

LAYER = "transformer.blocks.{}."
NORMS = "low_precision_layernorm", "layernorm"  # the same, rounded otherwise


class Mpt(Decoder):
    """MPT 7B and 30B."""

    names: ClassVar[Mapping[str, str]] = {
        "transformer.wte": "embedding",
        LAYER + "norm_1": "blocks.{}.attention_norm",
        LAYER + "attn.Wqkv": "blocks.{}.attention.qkv",
        LAYER + "attn.out_proj": "blocks.{}.attention.out",
        LAYER + "norm_2": "blocks.{}.mlp_norm",
        LAYER + "ffn.up_proj": "blocks.{}.mlp.inner.up",
        LAYER + "ffn.down_proj": "blocks.{}.mlp.down",
        "transformer.norm_f": "norm",
        "lm_head": "head",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = config.read_gpt_names(raw)
        fields.require("no_bias", True)
        fields.require("expansion_ratio", 4)
        fields.require_unset("logit_scale")
        fields.ignore("embedding_fraction", "init_config", "init_device", "verbose")
        fields.ignore("learned_pos_emb", "tokenizer_name")  # with ALiBi there are no others
        if (kind := fields.raw.get("norm_type") or NORMS[0]) not in NORMS:
            raise Unsupported(f"config.json: norm_type {kind!r} is not supported, only {NORMS} are")
        given = raw.get("attn_config") is not None
        own = Fields(raw).section("attn_config") if given else Fields({})
        own.require("attn_type", "multihead_attention")
        own.require("alibi", True)
        own.require_unset("prefix_lm", "qk_ln", "attn_uses_sequence_id")
        own.ignore("attn_impl")
        slopes = config.alibi_slopes(
            fields.count("num_attention_heads"), own.positive("alibi_bias_max", 8)
        )
        changes: dict[str, Any] = {"slopes": slopes, "clip": own.optional("clip_qkv")}
        if scale := own.optional("softmax_scale"):
            changes["scale"] = scale
        attention = config.read_attention(fields, None, **changes)
        mlp = config.read_mlp(fields, "hidden_act", "gelu", gated=False)
        norm = config.read_layer_norm(fields, "layer_norm_epsilon", bias=False)
        residual = config.read_residual(fields, norm=norm)
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        return config.read_decoder(fields, layers, residual)
