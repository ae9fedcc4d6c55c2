"""Kimi K2.5 and K2.6, text; requests cannot contain images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Specification, read_text_config
from penstock.models.deepseek import DeepseekV3


class KimiK25(DeepseekV3):
    """Kimi K2.5, K2.6: Kimi K2, which is DeepSeek-V3."""

    names: ClassVar[Mapping[str, str]] = {
        f"language_model.{module}": path for module, path in DeepseekV3.names.items()
    }
    # transformers saves layers of text under the name that those of images have.
    older: ClassVar[Mapping[str, str]] = {
        "language_model.model.blocks.": "language_model.model.layers."
    }
    ignored: tuple[str, ...] = (
        r"vision_tower\..*",
        r"(model\.)?mm_projector\..*",
        *(rf"language_model\.{name}" for name in DeepseekV3.ignored),
    )

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))
