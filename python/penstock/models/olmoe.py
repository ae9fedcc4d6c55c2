"""OLMoE 1B-7B: queries and keys normalised over all heads, experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    MoeSpec,
    NormSpec,
    QkNorm,
    QkNormWidth,
    Specification,
    read_attention,
    read_decoder,
    read_expert_count,
    read_gated,
    read_residual,
    read_rope,
    read_routing,
)
from penstock.models.decoder import EXPERT_NAMES, Decoder
from penstock.models.qwen import Qwen3


class Olmoe(Decoder):
    """OLMoE."""

    names: ClassVar[Mapping[str, str]] = Qwen3.names | EXPERT_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(raw)
        norm, bias = NormSpec(fields.number("rms_norm_eps", 1e-5)), fields.flag("attention_bias")
        attention = read_attention(
            fields,
            read_rope(fields),
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QkNorm(norm, QkNormWidth.FULL),
        )
        routing = read_routing(fields, renormalise=fields.flag("norm_topk_prob"))
        moe = MoeSpec(read_expert_count(fields), read_gated(fields, "intermediate_size"), routing)
        layers = [LayerSpec(attention, moe)] * fields.count("num_hidden_layers")
        fields.require_unset("clip_qkv")
        return read_decoder(fields, layers, read_residual(fields, norm=norm))
