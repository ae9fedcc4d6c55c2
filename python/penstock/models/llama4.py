"""Llama 4, text: chunked attention with RoPE, full attention without, experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import ExpertStorage, Specification, read_text_config
from penstock.layers import Build
from penstock.models.decoder import Decoder
from penstock.models.llama4_block import NAMES, Llama4Block
from penstock.models.llama4_config import read_llama4
from penstock.weights import Shapes


class Llama4Text(Decoder):
    """The text models."""

    names: ClassVar[Mapping[str, str]] = NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return read_llama4(raw)

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Finds out how the experts are stored: in quantized checkpoints each by itself."""
        if any(name.endswith(".experts.gate_up_proj") for name in shapes):
            return spec
        return spec.with_experts(storage=ExpertStorage.SEPARATE)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> Llama4Block:
        """Builds layer `index`."""
        return Llama4Block(spec, build, index)


class Llama4(Llama4Text):
    """The text part of checkpoints with images, which requests cannot contain."""

    names: ClassVar[Mapping[str, str]] = {
        f"language_model.{module}": path for module, path in NAMES.items()
    }
    ignored = (r"vision_model\..*", r"multi_modal_projector\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))
