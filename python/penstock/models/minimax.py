"""MiniMax-M2: Mixtral's experts, chosen as DeepSeek-V3 does, and norms of all queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    Fields,
    LayerSpec,
    MoeSpec,
    NormSpec,
    QkNorm,
    QkNormWidth,
    RouterSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_expert_count,
    read_gated,
    read_residual,
    read_rope,
    read_sigmoid_routing,
    with_rotary_dim,
)
from penstock.layers import Build
from penstock.models.decoder import CORRECTION_PATH, QK_NORM_NAMES, Decoder
from penstock.models.mixtral import MOE, Mixtral

# Of layers that predict several tokens, which are not loaded, and of an older MiniMax.
UNUSED = (
    *("num_mtp_modules", "mtp_transformer_layers", "use_mtp", "mlp_intermediate_size"),
    *("layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"),
    "shared_moe_mode",
)


class MiniMaxM2(Decoder):
    """MiniMax-M2 and M2.1."""

    names: ClassVar[Mapping[str, str]] = {
        **Mixtral.names,
        **QK_NORM_NAMES,
        MOE + "e_score_correction_bias": CORRECTION_PATH,
    }

    def __init__(self, spec: Specification, build: Build) -> None:
        super().__init__(spec, build)
        count = len(spec.layers)
        extra = "|".join(str(layer) for layer in range(count, count + 4))
        self.ignored = (*self.ignored, rf"model\.layers\.({extra})\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, {"head_dim": 128, "rope_theta": 5e6}))
        fields.ignore(*UNUSED)
        for name, only in (
            ("scoring_func", "sigmoid"),
            ("use_routing_bias", True),
            ("use_qk_norm", True),
            ("qk_norm_type", "per_layer"),
            ("shared_intermediate_size", 0),
            ("attn_type_list", [1] * fields.count("num_hidden_layers")),
        ):
            fields.require(name, only)
        fields = with_rotary_dim(fields)
        norm = NormSpec(fields.number("rms_norm_eps", 1e-6))
        attention = read_attention(
            fields, read_rope(fields, partial=True), qk_norm=QkNorm(norm, QkNormWidth.FULL)
        )
        expert = read_gated(fields, "intermediate_size")
        routing, router = read_sigmoid_routing(fields), RouterSpec(correction=True, float32=True)
        experts = read_expert_count(fields, "num_local_experts")
        layer = LayerSpec(attention, MoeSpec(experts, expert, routing, router))
        layers = [layer] * fields.count("num_hidden_layers")
        return read_decoder(fields, layers, read_residual(fields, norm=norm))
