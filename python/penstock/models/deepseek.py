"""DeepSeek-V2, V2-Lite, V3, R1 and Kimi K2: latent attention, shared experts.

A checkpoint's layers after the last one predict several tokens; they are not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import Fields, MoeSpec, RouterSpec, Specification, layered
from penstock.models.decoder import (
    EXPERT_NAMES,
    LATENT_NAMES,
    LLAMA_NAMES,
    SHARED_EXPERT_NAMES,
    Decoder,
)

SELF, ATTENTION = "model.layers.{}.self_attn.", "blocks.{}.attention."
# Fields of training, and of other engines.
UNUSED = ("aux_loss_alpha", "ep_size", "pretraining_tp", "seq_aux")


class DeepseekV3(Decoder):
    """V3, R1, Kimi K2 and Moonlight: sigmoid routing with a correction bias."""

    score, dense = "sigmoid", 3
    attention = staticmethod(config.read_latent_attention)
    names: ClassVar[Mapping[str, str]] = {
        **(LLAMA_NAMES | LATENT_NAMES | EXPERT_NAMES | SHARED_EXPERT_NAMES)
    }
    ignored: tuple[str, ...] = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
    predicts_further = 1

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, and refuses those that it does not know. Raises BadModel."""
        sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "first_k_dense_replace": cls.dense}
        fields = Fields(layered(raw, sizes))
        fields.ignore(*UNUSED)
        fields.require("scoring_func", cls.score)
        fields.require("moe_layer_freq", 1)
        fields.require_unset("mlp_bias")
        fields.require_at_most("num_nextn_predict_layers", 1)
        attention, sparse = cls.attention(fields), cls.moe(fields)
        layers = config.read_dense_first(fields, attention, sparse)
        return config.read_decoder(fields, layers)

    @classmethod
    def moe(cls, fields: Fields) -> MoeSpec:
        """Reads the layers with experts."""
        fields.require("topk_method", "noaux_tc")
        return config.read_corrected_moe(fields)


class DeepseekV2(DeepseekV3):
    """V2 and V2-Lite: softmax routing, by the best expert of each group."""

    score, dense = "softmax", 0

    @classmethod
    def moe(cls, fields: Fields) -> MoeSpec:
        """Reads the layers with experts."""
        fields.require_unset("norm_topk_prob")
        routing = config.read_group_limited_routing(fields)
        return config.read_shared_moe(fields, routing, RouterSpec(float32=True))
