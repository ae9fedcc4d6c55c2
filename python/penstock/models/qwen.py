"""Qwen2, Qwen2.5 and Qwen3, dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    FULL,
    SLIDING,
    Fields,
    NormSpec,
    QkNorm,
    Specification,
    layered,
    read_layer_types,
)
from penstock.models.decoder import LLAMA_NAMES, QK_NORM_NAMES
from penstock.models.llama import Llama


def read_windows(fields: Fields, layers: int) -> list[int]:
    """Returns each layer's window: layers from max_window_layers on may have one. `layer_types`
    overrides the older fields, as in transformers."""
    slides = fields.flag("use_sliding_window") and fields.raw.get("sliding_window") is not None
    window = fields.count("sliding_window") if slides else 0
    fields.ignore("sliding_window")
    first = int(fields.number("max_window_layers", 28))
    default = [SLIDING if i >= first else FULL for i in range(layers)]
    return [window * (kind == SLIDING) for kind in read_layer_types(fields, default)]


class Qwen2(Llama):
    """Qwen2 and 2.5: biases on q, k and v; layers may have a sliding window."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds biases and windows."""
        spec = super().read_config(raw)
        windows = read_windows(Fields(raw), len(spec.layers))
        return spec.with_attention(windows, qkv_bias=True, output_bias=False)


class Qwen3(Llama):
    """Qwen3, dense: norms on each head of queries and keys; layers may have a sliding window."""

    names = LLAMA_NAMES | QK_NORM_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds norms and windows; heads have 128 dimensions unless head_dim says otherwise."""
        spec, fields = super().read_config(layered(raw, {"head_dim": 128})), Fields(raw)
        norm = QkNorm(NormSpec(spec.residual.norm.eps))
        return spec.with_attention(read_windows(fields, len(spec.layers)), qk_norm=norm)
