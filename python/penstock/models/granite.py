"""Granite 3: Llama with multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.config import Fields, Specification
from penstock.models.llama import Llama


class Granite(Llama):
    """Granite 3, dense: factors of embeddings, scores, layers' outputs and logits."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the factors."""
        spec, fields = super().read_config(raw), Fields(raw)
        multiplier = fields.positive("residual_multiplier", 1.0)
        spec = replace(
            spec,
            residual=replace(spec.residual, multiplier=multiplier),
            embedding_scale=fields.positive("embedding_multiplier", 1.0),
            logits_scale=1 / fields.positive("logits_scaling", 1.0),
        )
        scale = fields.positive("attention_multiplier", 1.0)
        return spec.with_attention(spec.windows, scale=scale)
