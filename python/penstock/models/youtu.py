"""Youtu-LLM: DeepSeek-V3's latent attention without experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    MlpSpec,
    Specification,
    layered,
    read_decoder,
    read_latent_attention,
)
from penstock.models.decoder import LATENT_NAMES, LLAMA_NAMES, Decoder

# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"num_attention_heads": 16, "num_key_value_heads": 16}
DEFAULTS |= {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64}
DEFAULTS |= {"qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 131_072}
DEFAULTS |= {"num_hidden_layers": 32, "tie_word_embeddings": True}


class Youtu(Decoder):
    """Youtu-LLM 2B."""

    names: ClassVar[Mapping[str, str]] = LLAMA_NAMES | LATENT_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields. Raises BadModel."""
        fields = Fields(layered(raw, DEFAULTS))
        fields.require("hidden_act", "silu")
        fields.ignore("embedding_initializer_range")
        mlp = MlpSpec(fields.count("intermediate_size"), bias=fields.flag("mlp_bias"))
        layer = LayerSpec(read_latent_attention(fields), mlp)
        return read_decoder(fields, [layer] * fields.count("num_hidden_layers"))
