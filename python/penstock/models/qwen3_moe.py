"""Qwen3-MoE: Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    AttentionSpec,
    Fields,
    LayerSpec,
    MoeSpec,
    NormSpec,
    QkNorm,
    Specification,
    read_attention,
    read_decoder,
    read_expert_count,
    read_gated,
    read_rope,
    read_routing,
    read_sparse_layers,
)
from penstock.models.decoder import EXPERT_NAMES, Decoder
from penstock.models.qwen import Qwen3


class Qwen3Moe(Decoder):
    """Qwen3 with experts in all layers, or in some."""

    names: ClassVar[Mapping[str, str]] = Qwen3.names | EXPERT_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(raw)
        layers = fields.count("num_hidden_layers")
        moe, attention = cls.experts(fields), cls.attention(fields, layers)
        sparse = read_sparse_layers(fields, layers)
        # Models whose layers all have experts need no size for dense ones.
        dense = moe if all(sparse) else read_gated(fields, "intermediate_size")
        specs = [
            LayerSpec(attends, moe if has_experts else dense)
            for attends, has_experts in zip(attention, sparse, strict=True)
        ]
        fields.ignore("intermediate_size", "max_window_layers", "sliding_window")
        return read_decoder(fields, specs)

    @classmethod
    def attention(cls, fields: Fields, layers: int) -> list[AttentionSpec]:
        """Returns the attention of each layer; all have a window or none has."""
        fields.require("use_qk_norm", True)
        window = 0
        if fields.flag("use_sliding_window") and fields.raw.get("sliding_window") is not None:
            window = fields.count("sliding_window")
        bias, norm = fields.flag("attention_bias"), NormSpec(fields.number("rms_norm_eps", 1e-6))
        one = read_attention(
            fields,
            read_rope(fields),
            window=window,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QkNorm(norm),
        )
        return [one] * layers

    @classmethod
    def experts(cls, fields: Fields) -> MoeSpec:
        """Returns the experts of every layer that has any."""
        routing = read_routing(fields, renormalise=fields.flag("norm_topk_prob"))
        expert = read_gated(fields, "moe_intermediate_size")
        return MoeSpec(read_expert_count(fields), expert, routing)
