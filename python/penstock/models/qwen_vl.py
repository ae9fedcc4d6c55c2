"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL, text; requests cannot contain images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import ExpertStorage, Fields, Specification, layered, read_text_with_axes
from penstock.models.decoder import VISION, with_images
from penstock.models.qwen import Qwen2, Qwen3
from penstock.models.qwen3_moe import Qwen3Moe
from penstock.models.qwen_hybrid_moe import STACKED_NAMES
from penstock.weights import Shapes


class Qwen2Vl(Qwen2):
    """Qwen2-VL, Qwen2.5-VL: Qwen2.5. Older files have text fields beside those of images."""

    names: ClassVar[Mapping[str, str]] = with_images(Qwen2.names)
    older: ClassVar[Mapping[str, str]] = {
        "visual.": "model.visual.",
        "model.": "model.language_model.",
    }
    ignored: tuple[str, ...] = VISION

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the text model's fields."""
        defaults = {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80}
        return super().read_config(layered(read_text_with_axes(raw), defaults))


class Qwen3Vl(Qwen3):
    """Qwen3-VL, dense: Qwen3."""

    names = with_images(Qwen3.names)
    ignored: tuple[str, ...] = VISION

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(layered(read_text_with_axes(raw), {"rope_theta": 5e5}))


class Qwen3VlMoe(Qwen3Moe):
    """Qwen3-VL with experts: Qwen3-MoE. A tensor holds all experts, in published checkpoints by
    inputs first."""

    names: ClassVar[Mapping[str, str]] = with_images({**Qwen3Moe.names, **STACKED_NAMES})
    ignored: tuple[str, ...] = VISION

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`; the weights of a token's experts always add up to 1."""
        text = layered(read_text_with_axes(raw), {"rope_theta": 5e5, "norm_topk_prob": True})
        Fields(text).require("norm_topk_prob", True)
        return super().read_config(text)

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Finds out how the experts are stored."""
        found = [shape for name, shape in shapes.items() if name.endswith(".experts.down_proj")]
        if not found:
            return spec
        by_inputs = found[0][-1] == spec.residual.hidden
        storage = ExpertStorage.TRANSPOSED if by_inputs else ExpertStorage.STACKED
        return spec.with_experts(storage=storage)
