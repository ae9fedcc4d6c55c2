"""Muse Glimmer, text: Gemma 2's norms, gated attention; requests cannot contain images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Specification, read_text_config
from penstock.models.decoder import with_images
from penstock.models.gemma2 import Gemma2
from penstock.models.muse_glimmer_config import read_muse_glimmer


class MuseGlimmer(Gemma2):
    """Muse Glimmer 30B: embeddings are normalised, the last of four layers does not rotate."""

    names: ClassVar[Mapping[str, str]] = with_images(Gemma2.names) | {
        "model.language_model.layers.{}.self_attn.gate_proj": "blocks.{}.attention.qkv.gate"
    }
    ignored: tuple[str, ...] = (r"model\.(?!language_model\.).*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        return read_muse_glimmer(read_text_config(raw))
