"""Mistral Small 4: DeepSeek-V3 with softmax routing and Ministral 3's factor of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock_kernels.route_experts import Score

from penstock.config import (
    Fields,
    MoeSpec,
    PositionScale,
    RouterSpec,
    Specification,
    layered,
    read_shared_moe,
    read_sigmoid_routing,
    with_rope,
)
from penstock.models.deepseek import DeepseekV3
from penstock.models.ministral import BETA, ORIGINAL
from penstock.models.qwen_hybrid_moe import STACKED_NAMES, Qwen35MoeText
from penstock.weights import Shapes

FRACTION = "partial_rotary_factor"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    ORIGINAL: 8192,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    BETA: 0.1,
}
DEFAULTS = {
    "kv_lora_rank": 256,
    "q_lora_rank": 1024,
    "n_shared_experts": 1,
}


class Mistral4(DeepseekV3):
    """Mistral Small 4. A tensor holds all experts, or each has its own."""

    score, dense = "softmax", 0
    names: ClassVar[Mapping[str, str]] = {**DeepseekV3.names, **STACKED_NAMES}

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the factor. `head_dim` and the share that rotates say again what other fields do.
        Raises BadModel."""
        fields = Fields(layered(with_rope(raw, YARN), DEFAULTS))
        rotated = fields.count("qk_rope_head_dim", 64)
        head_dim = fields.count("qk_nope_head_dim") + rotated
        fields.require("head_dim", head_dim)
        rope = fields.section("rope_parameters")
        rope.require(FRACTION, rotated / head_dim)
        beta = rope.optional(BETA)
        scale = PositionScale(beta, rope.count(ORIGINAL)) if beta else None
        plain = {name: value for name, value in rope.raw.items() if name not in (BETA, FRACTION)}
        found = {"head_dim": None, "rope_parameters": plain}
        spec = super().read_config(layered(found, fields.raw))
        return spec.with_attention(spec.windows, position_scale=scale)

    @classmethod
    def moe(cls, fields: Fields) -> MoeSpec:
        """Reads the layers with experts: groups compete as in V3, with scores by softmax."""
        routing = replace(read_sigmoid_routing(fields), score=Score.SOFTMAX)
        return read_shared_moe(fields, routing, RouterSpec())

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Finds out how the experts are stored."""
        return Qwen35MoeText.as_stored(spec, shapes)
