"""K-EXAONE: Exaone 4's attention, norms before layers as in Llama, the experts of DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    Placement,
    RouterSpec,
    Specification,
    layered,
    read_shared_moe,
    read_sigmoid_routing,
)
from penstock.faults import BadModel
from penstock.models.decoder import CORRECTION_PATH, EXPERT_NAMES, SHARED_EXPERT_NAMES
from penstock.models.exaone4 import Exaone4
from penstock.models.qwen import Qwen3

DENSE, SPARSE = "dense", "sparse"


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
        fields = Fields(layered(shared, raw, defaults))
        fields.require("scoring_func", "sigmoid")
        fields.require("topk_method", "noaux_tc")
        fields.ignore("num_nextn_predict_layers")
        spec = super().read_config(raw)
        router = RouterSpec(correction=True, float32=True)
        moe = read_shared_moe(fields, read_sigmoid_routing(fields), router)
        kinds = _kinds(fields, len(spec.layers))
        layers = tuple(
            replace(layer, mlp=moe) if kind == SPARSE else layer
            for layer, kind in zip(spec.layers, kinds, strict=True)
        )
        residual = replace(spec.residual, placement=Placement.PRE)
        return replace(spec, residual=residual, layers=layers)


def _kinds(fields: Fields, count: int) -> list[str]:
    """Which layers have experts: `mlp_layer_types`, `is_moe_layer` in older files, or else all but
    the first ones."""
    first = fields.number("first_k_dense_replace", 1)
    kinds, flags = fields.raw.get("mlp_layer_types"), fields.raw.get("is_moe_layer")
    if not kinds and isinstance(flags, list):
        kinds = [SPARSE if flag else DENSE for flag in flags]
    kinds = kinds or [DENSE if index < first else SPARSE for index in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count or not {*kinds} <= {DENSE, SPARSE}:
        raise BadModel(
            f"config.json: mlp_layer_types must hold {DENSE} or {SPARSE} for each of {count} "
            f"layers, found {kinds!r}"
        )
    return kinds
