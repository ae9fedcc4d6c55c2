"""GPT-2: learned positions, LayerNorm, biases, matrices stored by inputs first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    Specification,
    read_attention,
    read_decoder,
    read_gpt_names,
    read_layer_norm,
    read_mlp,
    read_residual,
)
from penstock.models.decoder import Decoder
from penstock.weights import Names, Transposed

LAYER = "transformer.h.{}."
MATRICES = {
    LAYER + "attn.c_attn": "blocks.{}.attention.qkv",
    LAYER + "attn.c_proj": "blocks.{}.attention.out",
    LAYER + "mlp.c_fc": "blocks.{}.mlp.inner.up",
    LAYER + "mlp.c_proj": "blocks.{}.mlp.down",
}


class Gpt2(Decoder):
    """GPT-2 and its variants. Hub checkpoints lack the prefix of the names."""

    names: ClassVar[Mapping[str, str]] = MATRICES | {
        "transformer.wte": "embedding",
        "transformer.wpe": "positions",
        LAYER + "ln_1": "blocks.{}.attention_norm",
        LAYER + "ln_2": "blocks.{}.mlp_norm",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    }
    older: ClassVar[Mapping[str, str]] = {"": "transformer."}
    activation: ClassVar[str] = "gelu_new"
    ignored = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """The matrices of layers are transposed."""
        return Names(cls.names, dict.fromkeys(MATRICES, Transposed()))

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = read_gpt_names(raw)
        fields.require_unset("add_cross_attention")
        fields.ignore("reorder_and_upcast_attn")
        by_layer = fields.flag("scale_attn_by_inverse_layer_idx")
        layers = [
            cls.layer(fields, 1 / (index + 1 if by_layer else 1))
            for index in range(fields.count("num_hidden_layers"))
        ]
        residual = read_residual(fields, norm=read_layer_norm(fields, "layer_norm_epsilon"))
        return read_decoder(fields, layers, residual, learned_positions=True)

    @classmethod
    def layer(cls, fields: Fields, factor: float) -> LayerSpec:
        """A layer whose scores have this factor."""
        attention = read_attention(fields, None, qkv_bias=True, output_bias=True)
        scale = attention.scale if fields.flag("scale_attn_weights", True) else 1.0
        mlp = read_mlp(fields, "activation_function", cls.activation, bias=True, gated=False)
        return LayerSpec(replace(attention, scale=scale * factor), mlp)
