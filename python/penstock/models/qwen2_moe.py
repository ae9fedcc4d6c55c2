"""Qwen2-MoE: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from penstock.config import (
    FULL,
    SLIDING,
    AttentionSpec,
    Fields,
    MoeSpec,
    read_attention,
    read_gated,
    read_layer_types,
    read_rope,
)
from penstock.models.decoder import EXPERT_NAMES, LLAMA_NAMES
from penstock.models.qwen3_moe import Qwen3Moe

MLP = "model.layers.{}.mlp."
GATED_SHARED_NAMES = {
    MLP + "shared_expert.gate_proj": "blocks.{}.mlp.shared.gate_up.gate",
    MLP + "shared_expert.up_proj": "blocks.{}.mlp.shared.gate_up.up",
    MLP + "shared_expert.down_proj": "blocks.{}.mlp.shared.down",
    MLP + "shared_expert_gate": "blocks.{}.mlp.shared_gate",
}


class Qwen2Moe(Qwen3Moe):
    """Biases on q, k and v; a shared expert with a gate; every second layer may have a window."""

    names: ClassVar[Mapping[str, str]] = LLAMA_NAMES | EXPERT_NAMES | GATED_SHARED_NAMES

    @classmethod
    def attention(cls, fields: Fields, layers: int) -> list[AttentionSpec]:
        """Returns the attention of each layer."""
        slides, first = fields.flag("use_sliding_window"), fields.number("max_window_layers", 28)
        default = [
            SLIDING if slides and layer % 2 == 0 and layer < first else FULL
            for layer in range(layers)
        ]
        kinds = read_layer_types(fields, default)
        window = fields.count("sliding_window", 4096) if slides else 0
        full = read_attention(fields, read_rope(fields), qkv_bias=fields.flag("qkv_bias", True))
        return [replace(full, window=window * (kind == SLIDING)) for kind in kinds]

    @classmethod
    def experts(cls, fields: Fields) -> MoeSpec:
        """Returns the experts of every layer that has any."""
        return with_gated_shared(fields, super().experts(fields))


def with_gated_shared(fields: Fields, moe: MoeSpec) -> MoeSpec:
    """Adds a shared expert with a gate."""
    shared = read_gated(fields, "shared_expert_intermediate_size")
    return replace(moe, shared=shared, shared_gate=True)
