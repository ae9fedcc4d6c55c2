"""Gemma 3: Gemma 2 with normalised queries and keys, and one RoPE per kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    SLIDING,
    Fields,
    RopeSpec,
    Specification,
    layered,
    read_rope,
    read_text_config,
)
from penstock.models.decoder import QK_NORM_NAMES
from penstock.models.gemma2 import DEFAULTS, Gemma2

LOCAL = "rope_local_base_freq"


class Gemma3Text(Gemma2):
    """The text models: 270M, 1B, and the text part of the larger ones."""

    names: ClassVar[Mapping[str, str]] = {**Gemma2.names, **QK_NORM_NAMES}
    defaults = DEFAULTS | {
        "max_position_embeddings": 131_072,
        "sliding_window_pattern": 6,
        "vocab_size": 262_208,
    }
    qk_norm = True

    @staticmethod
    def rope(fields: Fields, kind: str) -> RopeSpec:
        """Returns the RoPE of a kind of layer; sliding layers have another base and no scaling."""
        fields.ignore(LOCAL)
        if kind == SLIDING and not fields.raw.get("rope_parameters"):
            theta = fields.number(LOCAL, 10000.0)
            fields = Fields(layered({"rope_theta": theta, "rope_scaling": None}, fields.raw))
        theta = 10000.0 if kind == SLIDING else 1e6
        return read_rope(fields, layer_type=kind, theta=theta)


class Gemma3(Gemma3Text):
    """The text part of multimodal checkpoints; requests cannot contain images."""

    names: ClassVar[Mapping[str, str]] = {
        f"language_model.{module}": path for module, path in Gemma3Text.names.items()
    }
    ignored: tuple[str, ...] = (r"vision_tower\..*", r"multi_modal_projector\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))
