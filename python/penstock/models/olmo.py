"""OLMo 2 and 3: norms of the layers' outputs, and of all heads' queries and keys together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    FULL,
    SLIDING,
    Fields,
    Placement,
    QkNorm,
    QkNormWidth,
    RopeSpec,
    Specification,
    layered,
    periodic,
    read_layer_types,
    read_rope,
)
from penstock.models.decoder import LLAMA_NAMES, QK_NORM_NAMES, renamed
from penstock.models.llama import Llama

LAYER = "model.layers.{}."
POST_NORM_NAMES = {
    **renamed(LLAMA_NAMES, input_layernorm=None, post_attention_layernorm=None),
    **QK_NORM_NAMES,
    LAYER + "post_attention_layernorm": "blocks.{}.attention_output_norm",
    LAYER + "post_feedforward_layernorm": "blocks.{}.mlp_output_norm",
}


class Olmo2(Llama):
    """OLMo 2."""

    names: ClassVar[Mapping[str, str]] = POST_NORM_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the norms."""
        spec = super().read_config(layered(raw, {"rms_norm_eps": 1e-5}))
        norm = QkNorm(spec.residual.norm, QkNormWidth.FULL)
        residual = replace(spec.residual, placement=Placement.POST)
        return replace(spec, residual=residual).with_attention(spec.windows, qk_norm=norm)


class Olmo3(Olmo2):
    """OLMo 3: three of four layers have a sliding window, and a RoPE without scaling."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds windows, and the RoPE of each kind of layer."""
        fields = Fields(layered(raw, {"sliding_window": 4096}))
        ropes = {kind: _rope(fields, kind) for kind in (FULL, SLIDING)}
        alike = {"rope_parameters": None, "rope_scaling": None}
        spec = super().read_config(layered(alike, fields.raw))
        kinds = read_layer_types(fields, periodic(len(spec.layers), 4))
        window = fields.count("sliding_window") if SLIDING in kinds else 0
        return spec.with_each_attention(
            {"rope": ropes[kind], "window": window * (kind == SLIDING)} for kind in kinds
        )


def _rope(fields: Fields, kind: str) -> RopeSpec:
    if kind == SLIDING and not fields.raw.get("rope_parameters"):
        fields = Fields(layered({"rope_scaling": None}, fields.raw))
    return read_rope(fields, layer_type=kind, theta=500_000.0)
