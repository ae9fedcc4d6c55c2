"""Seed-OSS: Llama with biases of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import Fields, Specification, layered
from penstock.models.llama import Llama


class SeedOss(Llama):
    """Seed-OSS 36B; heads have 128 dimensions unless head_dim says otherwise."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the bias of the output projection apart from that of the others."""
        fields = Fields(layered(raw, {"attention_bias": True, "head_dim": 128}))
        spec = super().read_config(fields.raw)
        return spec.with_attention(spec.windows, output_bias=fields.flag("attention_out_bias"))
