"""gpt-oss 20b and 120b: attention sinks, alternating windows, clamped SwiGLU, biases, MXFP4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    FULL,
    SLIDING,
    Activation,
    ExpertStorage,
    Fields,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    RouterSpec,
    Specification,
    layered,
    read_attention,
    read_decoder,
    read_expert_count,
    read_layer_types,
    read_residual,
    read_rope,
    read_routing,
)
from penstock.models.decoder import LLAMA_NAMES, Decoder

LAYER = "model.layers.{}."
# What transformers assumes where config.json has no RoPE.
ROPE = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
ROPE |= {"truncate": False, "original_max_position_embeddings": 4096}
FIXED = {"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0}


class GptOss(Decoder):
    """gpt-oss, with experts in MXFP4, or dequantized."""

    names: ClassVar[Mapping[str, str]] = {
        module: path for module, path in LLAMA_NAMES.items() if ".mlp." not in module
    } | {
        LAYER + "self_attn": "blocks.{}.attention",
        LAYER + "mlp.router": "blocks.{}.mlp.router",
        LAYER + "mlp.experts": "blocks.{}.mlp.experts",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        has_rope = raw.get("rope_scaling") or raw.get("rope_parameters")
        rope = {} if has_rope else {"rope_scaling": ROPE}
        fields = Fields(layered(rope, raw, {"head_dim": 64}))
        fields.ignore("initial_context_length", "experts_per_token")  # older names
        for name, value in FIXED.items():
            fields.require(name, value)
        bias = fields.flag("attention_bias", True)
        attention = read_attention(
            fields, read_rope(fields, theta=150000.0), qkv_bias=bias, output_bias=bias, sinks=True
        )
        expert = MlpSpec(fields.count("intermediate_size"), Activation.CLAMPED_SWIGLU, bias=True)
        moe = MoeSpec(
            read_expert_count(fields, "num_local_experts"),
            expert,
            read_routing(fields, score_after_choice=True),
            RouterSpec(bias=True),
            storage=ExpertStorage.INTERLEAVED,
        )
        count = fields.count("num_hidden_layers")
        kinds = read_layer_types(fields, [FULL if i % 2 else SLIDING for i in range(count)])
        window = fields.count("sliding_window", 128)
        windows = [window * (kind == SLIDING) for kind in kinds]
        layers = [LayerSpec(replace(attention, window=window), moe) for window in windows]
        residual = read_residual(fields, norm=NormSpec(fields.number("rms_norm_eps", 1e-5)))
        return read_decoder(fields, layers, residual)
