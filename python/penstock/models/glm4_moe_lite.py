"""GLM-4.7-Flash: DeepSeek-V3, where config.json may list which layers are dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import Fields, Specification, layered
from penstock.faults import BadModel
from penstock.models.deepseek import DeepseekV3


class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash."""

    dense, eps = 1, 1e-5

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads `mlp_layer_types` as the number of dense layers, which come first. Raises
        BadModel."""
        kinds = raw.get("mlp_layer_types")
        if kinds is None:
            return super().read_config(layered(raw, {"rms_norm_eps": cls.eps}))
        layers = Fields(raw).count("num_hidden_layers")
        dense = kinds.count("dense") if isinstance(kinds, list) else 0
        if kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
            raise BadModel(
                "config.json: mlp_layer_types must list dense layers, then sparse ones, one for "
                f"each layer, found {kinds!r}"
            )
        Fields(raw).ignore("first_k_dense_replace")  # the list replaces it
        found = {"first_k_dense_replace": dense}
        return super().read_config(layered(found, raw, {"rms_norm_eps": cls.eps}))
