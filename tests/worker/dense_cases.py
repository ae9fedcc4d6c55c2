"""Dense families that share little with others."""

from __future__ import annotations

from typing import Any

PARTIAL = {"rope_type": "default", "rope_theta": 9000.0, "partial_rotary_factor": 0.5}

FURTHER: dict[str, dict[str, Any]] = {
    "nemotron": {
        "model_type": "nemotron",
        "head_dim": 24,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": PARTIAL,
    },
}
