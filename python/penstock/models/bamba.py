"""Bamba: layers of Mamba-2, some with attention that rotates half of each head, dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import FULL, LINEAR, Fields, LayerSpec, Specification, layered
from penstock.models.decoder import LLAMA_NAMES, Decoder

LAYER, PATH = "model.layers.{}.", "blocks.{}.attention"
MAMBA_NAMES = {
    LAYER + "mamba": PATH,
    LAYER + "mamba.in_proj": PATH + ".inputs",
    LAYER + "mamba.conv1d": PATH + ".convolution",
    LAYER + "mamba.norm": PATH + ".norm",
    LAYER + "mamba.out_proj": PATH + ".output",
}
# How transformers runs the model, and training.
IGNORED = "mamba_chunk_size", "num_logits_to_keep", "use_mamba_kernels", "z_loss_coefficient"
DEFAULTS = {"heads": 128, "groups": 1, "state": 256, "width": 4}
SIZES = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 262144,
    "partial_rotary_factor": 0.5,
}


class Bamba(Decoder):
    """IBM's Bamba 9B."""

    names: ClassVar[Mapping[str, str]] = {
        **{name.replace(".mlp.", ".feed_forward."): path for name, path in LLAMA_NAMES.items()},
        **MAMBA_NAMES,
        LAYER + "pre_ff_layernorm": "blocks.{}.mlp_norm",
        "model.final_layernorm": "norm",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, SIZES))
        fields.ignore(*IGNORED)
        residual, bias = config.read_residual(fields), fields.flag("attention_bias")
        rope = config.read_rope(fields, partial=True)
        full = config.read_attention(fields, rope, qkv_bias=bias, output_bias=bias)
        fields.require("attn_rotary_emb", rope.dims(full.head_dim))
        mamba = config.read_mamba(config.with_head_dim(fields), residual.norm, DEFAULTS)
        mixers: dict[str, Any] = {LINEAR: mamba, FULL: full}
        full_at = fields.raw.get("attn_layer_indices") or []
        layers = range(fields.count("num_hidden_layers"))
        default = [FULL if layer in full_at else LINEAR for layer in layers]
        kinds = config.read_hybrid_types(fields, default, LINEAR)
        mlp = config.read_mlp(fields, "hidden_act", "silu", bias=fields.flag("mlp_bias"))
        return config.read_decoder(
            fields, [LayerSpec(mixers[kind], mlp) for kind in kinds], residual
        )
