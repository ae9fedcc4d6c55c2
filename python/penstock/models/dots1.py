"""dots.llm1: Qwen3's attention with the experts of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    QkNorm,
    RouterSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_dense_first,
    read_residual,
    read_rope,
    read_shared_moe,
    read_sigmoid_routing,
)
from penstock.models.decoder import EXPERT_NAMES, SHARED_EXPERT_NAMES, Decoder
from penstock.models.qwen import Qwen3, read_windows


class Dots1(Decoder):
    """dots.llm1, base and instruct."""

    names: ClassVar[Mapping[str, str]] = Qwen3.names | EXPERT_NAMES | SHARED_EXPERT_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        defaults = {
            "first_k_dense_replace": 0,
            "max_window_layers": 62,
            "norm_topk_prob": False,
            "sliding_window": 4096,
            "use_sliding_window": True,
        }
        fields = Fields(layered(raw, defaults))
        if fields.raw.get("scoring_func") != "noaux_tc":  # another name of sigmoid
            fields.require("scoring_func", "sigmoid")
        fields.require("topk_method", "noaux_tc")
        fields.require("moe_layer_freq", 1)
        residual, bias = read_residual(fields), fields.flag("attention_bias")
        attention = read_attention(
            fields,
            read_rope(fields),
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QkNorm(residual.norm),
        )
        routing = replace(read_sigmoid_routing(fields), renormalise=fields.flag("norm_topk_prob"))
        moe = read_shared_moe(fields, routing, RouterSpec(correction=True, float32=True))
        layers = read_dense_first(fields, attention, moe)
        spec = read_decoder(fields, layers, residual)
        return spec.with_attention(read_windows(fields, len(layers)))
