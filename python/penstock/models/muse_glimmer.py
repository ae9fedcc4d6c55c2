"""Muse Glimmer, text: Gemma 2's norms, gated attention; requests cannot contain images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import Fields, NormKind, Specification
from penstock.layers import Build, norm_of
from penstock.models.decoder import with_images
from penstock.models.gemma2 import Gemma2
from penstock.models.muse_glimmer_config import read_muse_glimmer


class MuseGlimmer(Gemma2):
    """Muse Glimmer 30B: embeddings are normalised, the last of four layers does not rotate."""

    names: ClassVar[Mapping[str, str]] = with_images(Gemma2.names) | {
        "model.language_model.layers.{}.self_attn.gate_proj": "blocks.{}.attention.qkv.gate"
    }
    ignored: tuple[str, ...] = (r"model\.(?!language_model\.).*",)

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        plain = replace(spec.residual.norm, kind=NormKind.RMS)
        self.norm = norm_of(build, spec.residual.hidden, plain)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `text_config`."""
        fields = Fields(raw)
        fields.ignore(*raw)  # the rest describes images
        return read_muse_glimmer(fields.section("text_config").raw)
