"""Sarvam 30B and 105B: GLM-4.5 under Ling's names, and DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, Renamed, Specification, layered
from penstock.models.bailing_moe import BailingMoe
from penstock.models.deepseek import DeepseekV3
from penstock.models.glm4_moe import Glm4Moe

# Names in published files; transformers writes the others.
NAMES = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
EXPERTS = {"n_routed_experts": 128, "n_shared_experts": 1, "routed_scaling_factor": 2.5}
DEFAULTS: dict[str, Any] = {**EXPERTS, "rope_theta": 8e6, "use_qk_norm": True}
DEFAULTS |= {"moe_intermediate_size": 1024, "num_experts_per_tok": 6, "num_key_value_heads": 4}
DEFAULTS |= {"head_dim": 64, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-6}
LATENT_DEFAULTS: dict[str, Any] = {**EXPERTS}
LATENT_DEFAULTS |= {"moe_intermediate_size": 2048, "num_experts_per_tok": 8}
LATENT_DEFAULTS |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


class SarvamMoe(Glm4Moe):
    """Sarvam 30B."""

    names: ClassVar[Mapping[str, str]] = BailingMoe.names

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields under either names, with transformers' defaults. Raises BadModel."""
        renamed = Renamed(raw, {**NAMES, "use_qkv_bias": "attention_bias"})
        fields = Fields(layered(renamed, raw, DEFAULTS))
        fields.ignore("max_window_layers")
        fields.require_unset("sliding_window")
        _check(fields)
        return super().read_config(fields.raw)


class SarvamMla(DeepseekV3):
    """Sarvam 105B."""

    dense = 1

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields under either names, with transformers' defaults. Raises BadModel."""
        Fields(raw).ignore("head_dim")  # the width of a latent in published files
        fields = Fields(layered({"head_dim": None}, Renamed(raw, NAMES), raw, LATENT_DEFAULTS))
        width = fields.count("qk_nope_head_dim") + fields.count("qk_rope_head_dim")
        fields.require("q_head_dim", width)
        _check(fields)
        return super().read_config(layered(_yarn(fields.raw), fields.raw))


def _check(fields: Fields) -> None:
    """Raises BadModel for fields of published files whose other values would compute otherwise."""
    fields.ignore("router_dtype")
    fields.require_unset("use_bias")
    fields.require("moe_router_enable_expert_bias", True)
    fields.require("score_function", "sigmoid")


def _yarn(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_scaling` of files that call YaRN by another name."""
    rope = raw.get("rope_scaling")
    if not isinstance(rope, Mapping) or "deepseek_yarn" not in (
        rope.get("type"),
        rope.get("rope_type"),
    ):
        return {}
    return {"rope_scaling": {**rope, "type": "yarn", "rope_type": "yarn"}}
