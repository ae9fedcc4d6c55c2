"""Solar Open: GLM-4.5 with experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import Fields, Specification, layered
from penstock.models.glm4_moe import Glm4Moe

DEFAULTS = {
    "head_dim": 128,
    "n_shared_experts": 1,
    "partial_rotary_factor": 1.0,
    "rope_theta": 1e6,
}


class SolarOpen(Glm4Moe):
    """Solar Open 100B."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, DEFAULTS))
        fields.require("first_k_dense_replace", 0)
        fields.require("use_qk_norm", False)
        fields.ignore("intermediate_size")  # of dense layers
        unused = {"first_k_dense_replace": 0, "intermediate_size": 1}
        return super().read_config(layered(unused, fields.raw))
