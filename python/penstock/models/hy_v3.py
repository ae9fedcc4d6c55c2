"""Hunyuan 3: GLM-4.5 with Qwen3's RoPE, and biases where config.json says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock_kernels.route_experts import Score

from penstock.config import (
    Fields,
    LayerSpec,
    MoeSpec,
    QkNorm,
    RouterSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_gated,
    read_listed_sparse_layers,
    read_residual,
    read_rope,
    read_routing,
    read_shared_moe,
)
from penstock.models.decoder import CORRECTION_PATH, renamed
from penstock.models.glm4_moe import Glm4Moe

DEFAULTS = {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 11158840}
ONLY = ("moe_router_enable_expert_bias", "moe_router_use_sigmoid", "qk_norm", "route_norm")
# Where sums are rounded, and how transformers runs experts.
UNUSED = (
    *("enable_attention_fp32_softmax", "enable_lm_head_fp32", "enable_moe_fp32_combine"),
    "use_grouped_mm",
)


class HyV3(Glm4Moe):
    """Hy3-preview, Hy-MT2 30B-A3B."""

    names: ClassVar[Mapping[str, str]] = {
        name.replace("shared_experts", "shared_mlp"): path
        for name, path in renamed(Glm4Moe.names, gate="router.gate").items()
    } | {"model.layers.{}.mlp.expert_bias": CORRECTION_PATH}

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, DEFAULTS))
        fields.ignore(*UNUSED)
        for name in ONLY:
            fields.require(name, True)
        residual, bias = read_residual(fields), fields.flag("attention_bias")
        norm = QkNorm(residual.norm)
        attention = read_attention(
            fields, read_rope(fields), qkv_bias=bias, output_bias=bias, qk_norm=norm
        )
        fields.require_at_most("num_nextn_predict_layers", 1)
        moe, dense = _experts(fields), read_gated(fields, "intermediate_size")
        dense = replace(dense, bias=fields.flag("mlp_bias"))
        sparse = read_listed_sparse_layers(fields, fields.count("num_hidden_layers"))
        layers = [LayerSpec(attention, moe if has_experts else dense) for has_experts in sparse]
        return read_decoder(fields, layers, residual)


def _experts(fields: Fields) -> MoeSpec:
    shared = {"n_shared_experts": fields.count("num_shared_experts", 1)}
    scale = fields.positive("router_scaling_factor", 2.826)
    routing = read_routing(fields, score=Score.SIGMOID, renormalise=True, scale=scale)
    router = RouterSpec(correction=True, float32=True)
    moe = read_shared_moe(Fields(layered(shared, fields.raw)), routing, router, "num_experts")
    fields.require("expert_hidden_dim", moe.expert.intermediate)
    assert moe.shared is not None
    return replace(moe, shared=replace(moe.shared, bias=fields.flag("mlp_bias")))
