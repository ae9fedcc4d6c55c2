"""GLM-4.5, GLM-4.5-Air, GLM-4.6 and GLM-4.7: sigmoid routing, a shared expert, dense first layers.

A checkpoint's layers after the last one predict several tokens; they are not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    QkNorm,
    RouterSpec,
    Specification,
    read_attention,
    read_decoder,
    read_expert_count,
    read_gated,
    read_residual,
    read_rope,
    read_sigmoid_routing,
)
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.models.decoder import EXPERT_NAMES, Decoder
from penstock.models.qwen import Qwen3

SHARED = "model.layers.{}.mlp.shared_experts."


class Glm4Moe(Decoder):
    """GLM-4.5 and later."""

    names: ClassVar[Mapping[str, str]] = (
        Qwen3.names
        | EXPERT_NAMES
        | {
            SHARED + "gate_proj": "blocks.{}.mlp.shared.gate_up.gate",
            SHARED + "up_proj": "blocks.{}.mlp.shared.gate_up.up",
            SHARED + "down_proj": "blocks.{}.mlp.shared.down",
        }
    )

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        self.ignored = (*self.ignored, rf"model\.layers\.{len(spec.layers)}\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, and refuses those that it does not know. Raises BadModel."""
        fields = Fields({"partial_rotary_factor": 0.5, **raw})
        norm = NormSpec(fields.number("rms_norm_eps", 1e-5))
        attention = read_attention(
            fields,
            read_rope(fields, partial=True),
            qkv_bias=fields.flag("attention_bias"),
            qk_norm=QkNorm(norm) if fields.flag("use_qk_norm") else None,
        )
        expert = read_gated(fields, "moe_intermediate_size")
        shared = MlpSpec(expert.intermediate * fields.count("n_shared_experts"), expert.activation)
        router = RouterSpec(correction=True, float32=True)
        experts, routing = read_expert_count(fields), read_sigmoid_routing(fields)
        moe = MoeSpec(experts, expert, routing, router, shared)
        dense = LayerSpec(attention, read_gated(fields, "intermediate_size"))
        layers, first = fields.count("num_hidden_layers"), fields.number("first_k_dense_replace", 1)
        specs = [LayerSpec(attention, moe) if i >= first else dense for i in range(layers)]
        spec = read_decoder(fields, specs, read_residual(fields, norm=norm))
        if fields.number("num_nextn_predict_layers", 1) > 1:
            raise BadModel("config.json: num_nextn_predict_layers above 1 is not supported")
        fields.done()
        return spec
