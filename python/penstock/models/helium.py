"""Helium: Llama whose RoPE rotates neighbours, without a bias of attention's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.config import Fields, Specification, layered
from penstock.models.llama import Llama

# What transformers assumes where config.json lacks a field.
DEFAULTS = {"head_dim": 128, "rms_norm_eps": 1e-8, "max_position_embeddings": 4096}
DEFAULTS |= {"rope_theta": 100_000.0}


class Helium(Llama):
    """Helium 1 2B."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Changes biases, and the order of RoPE's pairs."""
        spec = super().read_config(layered(raw, DEFAULTS))
        Fields(raw).require("mlp_bias", False)
        return spec.with_each_attention(
            {"rope": rope and replace(rope, interleaved=True), "output_bias": False}
            for rope in (attention.rope for attention in spec.softmax_layers)
        )
