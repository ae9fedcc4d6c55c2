"""SmolLM3: Llama with layers that have no position embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    FULL,
    SLIDING,
    Fields,
    Specification,
    layered,
    read_layer_types,
    read_rotating_layers,
)
from penstock.models.llama import Llama

DEFAULTS = {"rope_theta": 2e6, "tie_word_embeddings": True, "num_key_value_heads": 4}


class SmolLM3(Llama):
    """SmolLM3: every fourth layer has no RoPE; these may have a sliding window."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds windows, and drops the RoPE of some layers."""
        fields = Fields(layered(raw, DEFAULTS))
        fields.ignore("max_window_layers")
        spec = super().read_config(fields.raw)
        rotates = read_rotating_layers(fields, len(spec.layers))
        slides = fields.flag("use_sliding_window") and fields.raw.get("sliding_window") is not None
        window = fields.count("sliding_window") if slides else 0
        fields.ignore("sliding_window")
        kinds = read_layer_types(
            fields, [FULL if one or not slides else SLIDING for one in rotates]
        )
        return spec.with_each_attention(
            {"window": window * (kind == SLIDING)} | ({} if one else {"rope": None})
            for one, kind in zip(rotates, kinds, strict=True)
        )
