"""K-EXAONE: Exaone 4's attention, norms before layers as in Llama, the experts of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    Placement,
    Specification,
    layered,
    read_corrected_moe,
    read_listed_sparse_layers,
)
from penstock.models.decoder import CORRECTION_PATH, EXPERT_NAMES, SHARED_EXPERT_NAMES
from penstock.models.exaone4 import Exaone4
from penstock.models.qwen import Qwen3


class ExaoneMoe(Exaone4):
    """K-EXAONE 236B-A23B."""

    names: ClassVar[Mapping[str, str]] = {
        **(Qwen3.names | EXPERT_NAMES | SHARED_EXPERT_NAMES),
        "model.layers.{}.mlp.e_score_correction_bias": CORRECTION_PATH,
    }
    ignored: tuple[str, ...] = (*Exaone4.ignored, r"mtp\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Moves the norms, and adds the experts to some of the layers."""
        defaults = {"routed_scaling_factor": 2.5}
        shared = {"n_shared_experts": Fields(raw).count("num_shared_experts", 1)}
        fields = Fields(layered(shared, _older(raw), raw, defaults))
        fields.require("scoring_func", "sigmoid")
        fields.require("topk_method", "noaux_tc")
        fields.ignore("num_nextn_predict_layers")
        spec = super().read_config(raw)
        moe = read_corrected_moe(fields, "num_experts")
        sparse = read_listed_sparse_layers(fields, len(spec.layers))
        layers = tuple(
            replace(layer, mlp=moe) if has_experts else layer
            for layer, has_experts in zip(spec.layers, sparse, strict=True)
        )
        residual = replace(spec.residual, placement=Placement.PRE)
        return replace(spec, residual=residual, layers=layers)


def _older(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`mlp_layer_types` of files that have `is_moe_layer` instead."""
    flags = raw.get("is_moe_layer")
    if raw.get("mlp_layer_types") or not isinstance(flags, list):
        return {}
    return {"mlp_layer_types": ["sparse" if flag else "dense" for flag in flags]}
