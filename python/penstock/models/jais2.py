"""Jais 2: Llama with LayerNorm, biases, and squared ReLU without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import Fields, Specification, layered, read_layer_norm, read_rope
from penstock.models.nemotron import Nemotron


class Jais2(Nemotron):
    """Jais 2 8B and 70B: as Nemotron, with norms that scale by w, and RoPE of whole heads."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"attention_bias": True, "mlp_bias": True}))
        return cls.assemble(fields, read_rope(fields), read_layer_norm(fields, "layer_norm_eps"))
