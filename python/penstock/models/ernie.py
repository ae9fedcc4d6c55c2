"""Ernie 4.5, dense: Llama whose RoPE rotates neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.config import Fields, Specification, layered
from penstock.models.llama import Llama

DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}


class Ernie45(Llama):
    """Ernie 4.5 0.3B."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads one flag for all biases, and the order of RoPE's pairs."""
        bias = Fields(raw).flag("use_bias")
        biases = {"attention_bias": bias, "mlp_bias": bias}
        spec = super().read_config(layered(biases, raw, DEFAULTS))
        return spec.with_each_attention(
            {"rope": attention.rope and replace(attention.rope, interleaved=True)}
            for attention in spec.softmax_layers
        )
