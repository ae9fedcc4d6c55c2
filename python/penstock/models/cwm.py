"""CWM: Llama, most of whose layers have a sliding window."""

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
    with_rope,
)
from penstock.models.llama import Llama

# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
DEFAULTS |= {"rope_theta": 1e6, "sliding_window": 8192, "max_position_embeddings": 131_072}
ROPE = {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "high_freq_factor": 4.0}
ROPE |= {"low_freq_factor": 1.0, "original_max_position_embeddings": 8192}


class Cwm(Llama):
    """CWM 32B: every fourth layer, from the first on, sees all tokens."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the windows."""
        fields = Fields(layered(with_rope(raw, ROPE), DEFAULTS))
        fields.require_unset("attention_bias")
        spec = super().read_config(fields.raw)
        layers = range(len(spec.layers))
        kinds = read_layer_types(fields, [SLIDING if layer % 4 else FULL for layer in layers])
        window = fields.count("sliding_window") if SLIDING in kinds else 0
        return spec.with_attention(window * (kind == SLIDING) for kind in kinds)
