"""Bloom: ALiBi, LayerNorm, also of embeddings, biases, queries, keys and values by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from penstock import config
from penstock.config import LayerSpec, Specification, layered
from penstock.layers import Build, Residual, norm_of
from penstock.layers.attention import StepContext
from penstock.models.decoder import Decoder
from penstock.weights import HeadGroups, Names

LAYER = "transformer.h.{}."
QKV = LAYER + "self_attention.query_key_value"


class Bloom(Decoder):
    """Bloom and BloomZ, 560M to 176B. Checkpoints may lack the prefix of the names."""

    names: ClassVar[Mapping[str, str]] = {
        "transformer.word_embeddings": "embedding",
        "transformer.word_embeddings_layernorm": "embedding_norm",
        LAYER + "input_layernorm": "blocks.{}.attention_norm",
        QKV: "blocks.{}.attention.qkv",
        LAYER + "self_attention.dense": "blocks.{}.attention.out",
        LAYER + "post_attention_layernorm": "blocks.{}.mlp_norm",
        LAYER + "mlp.dense_h_to_4h": "blocks.{}.mlp.inner.up",
        LAYER + "mlp.dense_4h_to_h": "blocks.{}.mlp.down",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    }
    older: ClassVar[Mapping[str, str]] = {"": "transformer."}

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        self.embedding_norm = norm_of(build, spec.residual.hidden, spec.residual.norm)

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Each head's query, key and value are stored together."""
        return Names(cls.names, {QKV: HeadGroups(1, spec.head_dim)})

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = config.read_gpt_names(layered(raw, {"max_position_embeddings": 2048}))
        fields.require_unset("apply_residual_connection_post_layernorm", "skip_bias_add_qkv")
        # Of Megatron: how it rounds, and how it fuses.
        fields.ignore("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion")
        fields.ignore("offset_alibi", "skip_bias_add", "slow_but_exact")
        slopes = config.alibi_slopes(fields.count("num_attention_heads"))
        biases = {"qkv_bias": True, "output_bias": True}
        attention = config.read_attention(fields, None, slopes=slopes, **biases)
        mlp = config.read_mlp(fields, "hidden_act", "gelu_new", bias=True, gated=False)
        norm = config.read_layer_norm(fields, "layer_norm_epsilon")
        residual = config.read_residual(fields, norm=norm)
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        return config.read_decoder(fields, layers, residual)

    def _entry(self, ids: Tensor, context: StepContext, embeddings: Tensor | None) -> Residual:
        entry = super()._entry(ids, context, embeddings)
        return Residual(self.embedding_norm(entry)[0], None, False)
