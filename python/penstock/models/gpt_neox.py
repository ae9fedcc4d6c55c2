"""GPT-NeoX and Pythia: attention beside the feed-forward layer, each with a norm of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    Placement,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_layer_norm,
    read_mlp,
    read_residual,
    read_rope,
)
from penstock.models.decoder import Decoder
from penstock.weights import HeadGroups, Names

LAYER = "gpt_neox.layers.{}."
QKV = LAYER + "attention.query_key_value"


class GptNeoX(Decoder):
    """GPT-NeoX 20B, Pythia, Dolly 2."""

    names: ClassVar[Mapping[str, str]] = {
        "gpt_neox.embed_in": "embedding",
        LAYER + "input_layernorm": "blocks.{}.attention_norm",
        QKV: "blocks.{}.attention.qkv",
        LAYER + "attention.dense": "blocks.{}.attention.out",
        LAYER + "post_attention_layernorm": "blocks.{}.mlp_norm",
        LAYER + "mlp.dense_h_to_4h": "blocks.{}.mlp.inner.up",
        LAYER + "mlp.dense_4h_to_h": "blocks.{}.mlp.down",
        "gpt_neox.final_layer_norm": "norm",
        "embed_out": "head",
    }
    ignored = (r"gpt_neox\.layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",)

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Each head's query, key and value are stored together."""
        return Names(cls.names, {QKV: HeadGroups(1, spec.head_dim)})

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        older = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
        known = {new: raw[old] for old, new in older.items() if old in raw}
        fields = Fields(layered(raw, known, {"partial_rotary_factor": 0.25}))
        bias = fields.flag("attention_bias", True)
        rope = read_rope(fields, partial=True)
        attention = read_attention(fields, rope, qkv_bias=bias, output_bias=bias)
        mlp = read_mlp(fields, "hidden_act", "gelu", bias=True, gated=False)
        parallel = fields.flag("use_parallel_residual", True)
        residual = read_residual(
            fields,
            norm=read_layer_norm(fields, "layer_norm_eps"),
            placement=Placement.PARALLEL_NORMS if parallel else Placement.PRE,
        )
        layers = [LayerSpec(attention, mlp)] * fields.count("num_hidden_layers")
        return read_decoder(fields, layers, residual)
