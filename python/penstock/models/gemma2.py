"""Gemma 2: norms on both sides of each layer, scaled embeddings, soft caps, windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from penstock import config
from penstock.config import SLIDING, Fields, NormKind, NormSpec, Placement, Specification
from penstock.models.decoder import LLAMA_NAMES, Decoder

# What transformers assumes where config.json lacks a field. A null stays null: no window, no cap.
SIZES = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
DEFAULTS = SIZES | {"query_pre_attn_scalar": 256, "sliding_window": 4096}
DEFAULTS |= {"tie_word_embeddings": True}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


class Gemma2(Decoder):
    """Gemma 2: every second layer has a sliding window; scores and logits have soft caps."""

    names: ClassVar[Mapping[str, str]] = LLAMA_NAMES | {
        "model.layers.{}.post_attention_layernorm": "blocks.{}.attention_output_norm",
        "model.layers.{}.pre_feedforward_layernorm": "blocks.{}.mlp_norm",
        "model.layers.{}.post_feedforward_layernorm": "blocks.{}.mlp_output_norm",
    }
    defaults: ClassVar[Mapping[str, Any]] = (
        DEFAULTS | CAPS | {"max_position_embeddings": 8192, "sliding_window_pattern": 2}
    )
    qk_norm = False

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields. Raises BadModel."""
        fields = Fields(config.layered(raw, cls.defaults))
        fields.ignore("hidden_act", "sliding_window_size")  # transformers reads others
        fields.require_unset("use_bidirectional_attention")
        norm = NormSpec(fields.number("rms_norm_eps", 1e-6), NormKind.RMS_PLUS_ONE)
        activation = config.read_activation(fields, "hidden_activation", "gelu_pytorch_tanh")
        mlp = config.MlpSpec(fields.count("intermediate_size"), activation)
        layers = [config.LayerSpec(cls.attention(fields, norm, k), mlp) for k in _kinds(fields)]
        residual = config.read_residual(fields, norm=norm, placement=Placement.SANDWICH)
        scale, cap = residual.hidden**0.5, fields.optional("final_logit_softcapping")
        changes = {"embedding_scale": scale, "logits_softcap": cap}
        return config.read_decoder(fields, layers, residual, **changes)

    @classmethod
    def attention(cls, fields: Fields, norm: NormSpec, kind: str) -> config.AttentionSpec:
        """Returns the attention of a layer of this kind."""
        bias = fields.flag("attention_bias")
        return config.read_attention(
            fields,
            cls.rope(fields, kind),
            scale=fields.positive("query_pre_attn_scalar") ** -0.5,
            window=fields.count("sliding_window") if kind == SLIDING else 0,
            softcap=fields.optional("attn_logit_softcapping"),
            qk_norm=config.QkNorm(norm) if cls.qk_norm else None,
            qkv_bias=bias,
            output_bias=bias,
        )

    @staticmethod
    def rope(fields: Fields, kind: str) -> config.RopeSpec:
        """Returns the RoPE, which is the same in all layers."""
        return config.read_rope(fields)


def _kinds(fields: Fields) -> Sequence[str]:
    """Returns each layer's kind: full attention in the last of each period, else sliding."""
    period = fields.count("sliding_window_pattern")
    default = config.periodic(fields.count("num_hidden_layers"), period)
    return config.read_layer_types(fields, default)
