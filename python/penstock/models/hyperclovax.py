"""HyperCLOVA X: Granite with norms of what layers add, before its factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import Fields, Placement, Specification, layered
from penstock.models.granite import Granite


class HyperClovaX(Granite):
    """HyperCLOVA X SEED Think 14B."""

    names: ClassVar[Mapping[str, str]] = {
        **Granite.names,
        "model.layers.{}.post_norm1": "blocks.{}.attention_output_norm",
        "model.layers.{}.post_norm2": "blocks.{}.mlp_output_norm",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds norms; `logits_scaling` is a factor here, and the usual scale is the default."""
        fields = Fields(raw)
        size = fields.count("hidden_size") // fields.count("num_attention_heads")
        scale = fields.count("head_dim", size) ** -0.5
        scale = fields.positive("attention_multiplier", scale)  # null is the usual scale too
        spec = super().read_config(layered({"attention_multiplier": scale}, raw))
        placement = Placement.SANDWICH if fields.flag("use_post_norm", True) else Placement.PRE
        return replace(
            spec,
            residual=replace(spec.residual, placement=placement),
            logits_scale=fields.positive("logits_scaling", 1.0),
        )
