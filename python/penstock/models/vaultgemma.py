"""VaultGemma: Gemma 2 without norms of what layers add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import Placement, Specification
from penstock.models.decoder import LLAMA_NAMES
from penstock.models.gemma2 import Gemma2

BEFORE_MLP = "model.layers.{}.pre_feedforward_layernorm"


class VaultGemma(Gemma2):
    """VaultGemma 1B."""

    names: ClassVar[Mapping[str, str]] = {
        BEFORE_MLP if path == "blocks.{}.mlp_norm" else module: path
        for module, path in LLAMA_NAMES.items()
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Moves the norms."""
        spec = super().read_config(raw)
        return replace(spec, residual=replace(spec.residual, placement=Placement.PRE))
