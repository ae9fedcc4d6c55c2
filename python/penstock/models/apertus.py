"""Apertus: Llama with norms of queries and keys, and xIELU without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Activation,
    Fields,
    MlpSpec,
    QkNorm,
    Specification,
    layered,
    with_rope,
)
from penstock.models.arcee import Arcee
from penstock.models.decoder import QK_NORM_NAMES
from penstock.models.llama import Llama

LAYER = "model.layers.{}."
DEFAULTS = {"rms_norm_eps": 1e-5, "rope_theta": 12_000_000.0}
ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


class Apertus(Llama):
    """Apertus 8B and 70B."""

    names: ClassVar[Mapping[str, str]] = {
        **{name: path for name, path in Arcee.names.items() if "layernorm" not in name},
        **QK_NORM_NAMES,
        LAYER + "attention_layernorm": "blocks.{}.attention_norm",
        LAYER + "feedforward_layernorm": "blocks.{}.mlp_norm",
        LAYER + "mlp.act_fn": "blocks.{}.mlp.activate",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the norms, and replaces the feed-forward layers."""
        fields = Fields(layered(with_rope(raw, ROPE), DEFAULTS))
        fields.require("hidden_act", "xielu")
        fields.require("qk_norm", True)
        fields.require_unset("mlp_bias")
        spec = super().read_config(layered({"hidden_act": "silu"}, fields.raw))
        size = fields.count("intermediate_size")
        mlp = MlpSpec(size, Activation.XIELU, gated=False)
        spec = replace(spec, layers=tuple(replace(layer, mlp=mlp) for layer in spec.layers))
        return spec.with_attention(spec.windows, qk_norm=QkNorm(spec.residual.norm))
