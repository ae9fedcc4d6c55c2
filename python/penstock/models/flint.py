"""Flint: Qwen3-MoE with sinks, windows and a shared expert; layers with windows alone rotate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import FULL, SLIDING, AttentionSpec, Fields, MoeSpec, RouterSpec, Specification
from penstock.models.qwen2_moe import GATED_SHARED_NAMES
from penstock.models.qwen3_moe import Qwen3Moe

# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"head_dim": 128, "num_key_value_heads": 4, "norm_topk_prob": True}
DEFAULTS |= {"sliding_window": 513, "max_position_embeddings": 262_144, "num_hidden_layers": 49}


class Flint(Qwen3Moe):
    """Flint."""

    names: ClassVar[Mapping[str, str]] = {
        **Qwen3Moe.names,
        **{name: path for name, path in GATED_SHARED_NAMES.items() if "shared_gate" not in path},
        "model.layers.{}.self_attn.softmax_offset": "blocks.{}.attention.sinks",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        dense = [0, 1] if raw.get("mlp_only_layers") is None else raw["mlp_only_layers"]
        return super().read_config(config.layered({"mlp_only_layers": dense}, raw, DEFAULTS))

    @classmethod
    def attention(cls, fields: Fields, layers: int) -> list[AttentionSpec]:
        """Returns the attention of each layer."""
        wide = [layer < 2 or layer % 4 == 1 or layer == layers - 1 for layer in range(layers)]
        kinds = config.read_layer_types(fields, [FULL if one else SLIDING for one in wide])
        attention, *_ = super().attention(fields, 1)
        full = replace(attention, sinks=True, rope=None, window=0)
        sliding = replace(attention, sinks=True, window=fields.count("sliding_window"))
        return [sliding if kind == SLIDING else full for kind in kinds]

    @classmethod
    def experts(cls, fields: Fields) -> MoeSpec:
        """Returns the experts of every layer that has any."""
        renormalise = fields.flag("norm_topk_prob")
        return replace(
            super().experts(fields),
            routing=config.read_routing(fields, score=Score.SIGMOID, renormalise=renormalise),
            router=RouterSpec(float32=True),
            shared=config.read_gated(fields, "shared_expert_intermediate_size"),
        )
