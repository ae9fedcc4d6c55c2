"""Gemma 3n: alternating updates, embeddings per layer, KV caches that layers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Specification, read_text_config
from penstock.layers import Build, Layer
from penstock.models.gemma3n_block import BLOCK_NAMES, Gemma3nBlock
from penstock.models.gemma3n_config import read_gemma3n
from penstock.models.gemma4_text import Gemma4Text


class Gemma3nText(Gemma4Text):
    """The text models."""

    names: ClassVar[Mapping[str, str]] = {**Gemma4Text.names, **BLOCK_NAMES}

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields. Raises BadModel."""
        return read_gemma3n(raw)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> Layer:
        """Builds layer `index`."""
        return Gemma3nBlock(spec, build, index)


class Gemma3n(Gemma3nText):
    """The text part of E2B and E4B; requests cannot contain images or sound."""

    module = "model.language_model"
    ignored: tuple[str, ...] = (r"model\.(?!language_model\.).*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return super().read_config(read_text_config(raw))
