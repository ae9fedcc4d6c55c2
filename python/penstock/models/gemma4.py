"""Gemma 4: the text models, and the text part of multimodal checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Specification, read_text_config
from penstock.models.gemma4_text import Gemma4Text

UNIFIED = {"max_position_embeddings": 262_144, "sliding_window": 1024}
UNIFIED |= {"hidden_size_per_layer_input": 0}


class Gemma4(Gemma4Text):
    """The text part of E2B, E4B, 26B-A4B and 31B; requests cannot contain images or sound."""

    module = "model.language_model"
    ignored: tuple[str, ...] = (r"model\.(?!language_model\.).*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))


class Gemma4UnifiedText(Gemma4Text):
    """As the others, with other defaults: without embeddings per layer and experts."""

    defaults: ClassVar[Mapping[str, Any]] = UNIFIED


class Gemma4Unified(Gemma4):
    """The text part of 12B."""

    defaults: ClassVar[Mapping[str, Any]] = UNIFIED
