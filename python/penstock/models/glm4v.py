"""GLM-4.1V and GLM-4.5V, text; requests cannot contain images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, Specification, layered, read_text_with_axes
from penstock.models.decoder import VISION, with_images
from penstock.models.glm import Glm4
from penstock.models.glm4_moe import Glm4Moe


class Glm4v(Glm4):
    """GLM-4.1V 9B: GLM-4."""

    names: ClassVar[Mapping[str, str]] = with_images(Glm4.names)
    ignored: tuple[str, ...] = VISION

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        text = read_text_with_axes(raw)
        fields = Fields(text)
        head_dim = fields.count("hidden_size") // fields.count("num_attention_heads")
        defaults = {"head_dim": head_dim, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5}
        return super().read_config(layered(text, defaults))


class Glm4vMoe(Glm4Moe):
    """GLM-4.5V: GLM-4.5-Air."""

    names: ClassVar[Mapping[str, str]] = with_images(Glm4Moe.names)
    ignored: tuple[str, ...] = VISION

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(layered(read_text_with_axes(raw), {"attention_bias": True}))
