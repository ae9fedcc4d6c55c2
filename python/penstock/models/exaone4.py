"""Exaone 4: OLMo 2's norms, of each head's queries and keys; layers with windows alone rotate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    SLIDING,
    Fields,
    Placement,
    QkNorm,
    Specification,
    layered,
    periodic,
    read_layer_types,
    read_text_config,
)
from penstock.models.decoder import VISION, with_images
from penstock.models.llama import Llama
from penstock.models.olmo import POST_NORM_NAMES


class Exaone4(Llama):
    """Exaone 4 1.2B (no windows, all layers rotate) and 32B (full layers have no RoPE)."""

    names: ClassVar[Mapping[str, str]] = POST_NORM_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds norms, windows, and the RoPE of each layer."""
        fields = Fields(layered(raw, {"sliding_window": 4096, "rms_norm_eps": 1e-5}))
        spec = super().read_config(fields.raw)
        slides = fields.raw.get("sliding_window") is not None
        window = fields.count("sliding_window") if slides else 0
        kinds = _kinds(fields, len(spec.layers), slides)
        norm = QkNorm(spec.residual.norm)
        residual = replace(spec.residual, placement=Placement.POST)
        return replace(spec, residual=residual).with_each_attention(
            {"window": window * (kind == SLIDING), "qk_norm": norm}
            | ({} if kind == SLIDING or not slides else {"rope": None})
            for kind in kinds
        )


class Exaone45(Exaone4):
    """The text part of Exaone 4.5; requests cannot contain images."""

    names: ClassVar[Mapping[str, str]] = with_images(POST_NORM_NAMES)
    ignored: tuple[str, ...] = (*VISION, r"mtp\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))


def _kinds(fields: Fields, layers: int, slides: bool) -> list[str]:
    """`layer_types`, or else full attention in the last layer of each period."""
    given = fields.raw.get("layer_types")
    period = fields.count("sliding_window_pattern", 4) if slides and not given else 1
    fields.ignore("sliding_window_pattern")  # a text in published files, which have layer_types
    return list(read_layer_types(fields, periodic(layers, period)))
