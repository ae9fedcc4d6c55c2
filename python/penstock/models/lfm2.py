"""LFM2: gated short convolutions, and some layers with attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    CONV,
    FULL,
    Fields,
    LayerSpec,
    MlpSpec,
    NormSpec,
    QkNorm,
    ShortConvSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_hybrid_types,
    read_residual,
    read_rope,
)
from penstock.models.decoder import LLAMA_NAMES, Decoder

LAYER, PATH = "model.layers.{}.", "blocks.{}.attention"  # of both kinds
# Sizes under a second name.
REPEATED = "block_dim", "block_norm_eps", "conv_dim", "conv_dim_out", "num_heads", "theta"


class Lfm2(Decoder):
    """LFM2, dense."""

    names: ClassVar[Mapping[str, str]] = {
        **{name: path for name, path in LLAMA_NAMES.items() if "qkv" in path or "." not in path},
        "model.embedding_norm": "norm",
        LAYER + "operator_norm": "blocks.{}.attention_norm",
        LAYER + "ffn_norm": "blocks.{}.mlp_norm",
        LAYER + "self_attn.out_proj": PATH + ".out",
        LAYER + "self_attn.q_layernorm": PATH + ".q_norm",
        LAYER + "self_attn.k_layernorm": PATH + ".k_norm",
        LAYER + "conv.in_proj": PATH + ".inputs",
        LAYER + "conv.conv": PATH + ".convolution",
        LAYER + "conv.out_proj": PATH + ".output",
        LAYER + "feed_forward.w1": "blocks.{}.mlp.gate_up.gate",
        LAYER + "feed_forward.w3": "blocks.{}.mlp.gate_up.up",
        LAYER + "feed_forward.w2": "blocks.{}.mlp.down",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        older = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
        given = {new: raw[old] for old, new in older.items() if raw.get(old) is not None}
        fields = Fields(layered(given, raw, {"tie_word_embeddings": True}))
        for name in ("block_use_swiglu", "use_pos_enc"):
            fields.require(name, True)
        Fields(raw).ignore(*older.values(), *REPEATED, *(name for name in raw if "_init" in name))
        layers = fields.count("num_hidden_layers")
        norm, rope = NormSpec(fields.number("norm_eps", 1e-5)), read_rope(fields, theta=1e6)
        full = read_attention(fields, rope, qk_norm=QkNorm(norm))
        sizes = fields.count("hidden_size"), fields.count("conv_L_cache", 3)
        mixers: dict[str, Any] = {CONV: ShortConvSpec(*sizes, fields.flag("conv_bias")), FULL: full}
        full_at = fields.raw.get("full_attn_idxs") or range(layers)
        default = [FULL if layer in full_at else CONV for layer in range(layers)]
        mixed = [mixers[kind] for kind in read_hybrid_types(fields, default, CONV)]
        specs = map(LayerSpec, mixed, cls.mlps(fields, layers))
        return read_decoder(fields, specs, read_residual(fields, norm=norm))

    @staticmethod
    def mlps(fields: Fields, layers: int) -> list[Any]:
        """Returns the feed-forward layer of each layer: by default with two thirds of the given
        size, rounded up."""
        size = fields.count("intermediate_size")
        if fields.flag("block_auto_adjust_ff_dim", True):
            multiple = fields.count("block_multiple_of", 256)
            factor = fields.positive("block_ffn_dim_multiplier", 1.0)
            size = -(-int(factor * int(2 * size / 3)) // multiple) * multiple
        return [MlpSpec(size)] * layers
