"""StableLM: Llama with LayerNorm, and RoPE on a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.config import (
    Fields,
    LayerSpec,
    Placement,
    QkNorm,
    QkNormWidth,
    Renamed,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_layer_norm,
    read_mlp,
    read_residual,
    read_rope,
)
from penstock.models.decoder import LLAMA_NAMES, Decoder
from penstock.weights import HeadNames, Names


class StableLm(Decoder):
    """StableLM 3B and Zephyr 3B, StableLM 2 1.6B and 12B."""

    names = LLAMA_NAMES | {
        f"model.layers.{{}}.self_attn.{part}_layernorm.norms.{{}}": (
            f"blocks.{{}}.attention.{part}_norm.{{}}"
        )
        for part in "qk"
    }

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """With norms of each head, if there are any."""
        return HeadNames(cls.names)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"partial_rotary_factor": 0.25}))
        norm = read_layer_norm(fields, "layer_norm_eps")
        own = QkNorm(replace(norm, bias=False), QkNormWidth.OWN)
        fields.require("rotary_scaling_factor", 1.0)
        fields.ignore("norm_eps", "rope_pct", "use_norm_bias")  # transformers reads others
        layer = LayerSpec(
            read_attention(
                fields,
                read_rope(fields, partial=True),
                qkv_bias=fields.flag("use_qkv_bias"),
                qk_norm=own if fields.flag("qk_layernorm") else None,
            ),
            read_mlp(fields, "hidden_act", "silu"),
        )
        parallel = fields.flag("use_parallel_residual")
        residual = read_residual(
            fields,
            norm=norm,
            placement=Placement.PARALLEL if parallel else Placement.PRE,
        )
        return read_decoder(fields, [layer] * fields.count("num_hidden_layers"), residual)


class StableLmEpoch(StableLm):
    """The first revisions of StableLM 3B and 1.6B: the same model, other names of fields."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the older names, which these revisions have alone."""
        older = {"norm_eps": "layer_norm_eps", "rope_pct": "partial_rotary_factor"}
        Fields(raw).ignore("num_heads")  # num_attention_heads again
        return super().read_config(layered(Renamed(raw, older), raw))
