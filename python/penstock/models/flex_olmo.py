"""FlexOlmo: OLMo 2's attention and norms, OLMoE's experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import Placement, Specification, layered
from penstock.models.decoder import EXPERT_NAMES
from penstock.models.olmo import POST_NORM_NAMES
from penstock.models.olmoe import Olmoe


class FlexOlmo(Olmoe):
    """FlexOlmo 7x7B."""

    names: ClassVar[Mapping[str, str]] = POST_NORM_NAMES | EXPERT_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Moves the norms."""
        spec = super().read_config(layered(raw, {"rms_norm_eps": 1e-6, "rope_theta": 500_000.0}))
        return replace(spec, residual=replace(spec.residual, placement=Placement.POST))
