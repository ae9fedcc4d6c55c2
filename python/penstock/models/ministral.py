"""Ministral, and Ministral 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    FULL,
    SLIDING,
    Fields,
    PositionScale,
    Specification,
    layered,
    read_layer_types,
)
from penstock.models.llama import Llama, Mistral

BETA, ORIGINAL = "llama_4_scaling_beta", "original_max_position_embeddings"


class Ministral(Llama):
    """Ministral 8B: layers may have a sliding window."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the windows."""
        fields = Fields(layered(raw, {"sliding_window": 4096}))
        spec = super().read_config(raw)
        slides = fields.raw["sliding_window"] is not None
        kinds = read_layer_types(fields, [SLIDING if slides else FULL] * len(spec.layers))
        window = fields.count("sliding_window") if SLIDING in kinds else 0
        return spec.with_attention(window * (kind == SLIDING) for kind in kinds)


class Ministral3(Mistral):
    """Ministral 3: queries have a factor that grows with their position."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the factor. Raises BadModel."""
        rope = Fields(raw).section("rope_parameters")
        beta, original = rope.optional(BETA), rope.count(ORIGINAL)
        plain = {name: value for name, value in rope.raw.items() if name != BETA}
        defaults = {"head_dim": 128, "rms_norm_eps": 1e-5}
        spec = super().read_config(layered({"rope_parameters": plain}, raw, defaults))
        scale = PositionScale(beta, original) if beta else None
        return spec.with_attention(spec.windows, position_scale=scale)
