"""MiMo-V2-Flash: narrow values, sinks in layers with windows, and DeepSeek-V3's routing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import (
    FULL,
    SLIDING,
    Fields,
    LayerSpec,
    MoeSpec,
    RouterSpec,
    Specification,
    layered,
    read_decoder,
    read_expert_count,
    read_gated,
    read_layer_types,
    read_listed_sparse_layers,
    read_sigmoid_routing,
)
from penstock.models.decoder import EXPERT_NAMES, LLAMA_NAMES, Decoder
from penstock.models.mimo_config import read_attention_of, read_lists

DEFAULTS: Mapping[str, float] = {
    "attention_value_scale": 0.707,
    "head_dim": 192,
    "num_key_value_heads": 4,
    "partial_rotary_factor": 0.334,
    "sliding_window": 129,
    "v_head_dim": 128,
}
# Another name of the window, and layers that predict several tokens, which are not loaded.
UNUSED = ("attention_chunk_size", "sliding_window", "num_nextn_predict_layers")


class MiMoV2Flash(Decoder):
    """MiMo-V2-Flash."""

    names: ClassVar[Mapping[str, str]] = {
        **(LLAMA_NAMES | EXPERT_NAMES),
        "model.layers.{}.self_attn.attention_sink_bias": "blocks.{}.attention.sinks",
    }
    ignored = (r"model\.mtp\..*",)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        eps = {"rms_norm_eps": raw.get("layernorm_epsilon", 1e-5)}
        fields = Fields(layered(read_lists(raw), raw, DEFAULTS, eps))
        fields.ignore(*UNUSED)
        count = fields.count("num_hidden_layers")
        default = [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(count)]
        kinds = read_layer_types(fields, default)
        attention = {kind: read_attention_of(fields, kind) for kind in (FULL, SLIDING)}
        moe, dense = _experts(fields), read_gated(fields, "intermediate_size")
        sparse = read_listed_sparse_layers(fields, count)
        layers = [
            LayerSpec(attention[kind], moe if has_experts else dense)
            for kind, has_experts in zip(kinds, sparse, strict=True)
        ]
        return read_decoder(fields, layers)


def _experts(fields: Fields) -> MoeSpec:
    fields.require("scoring_func", "sigmoid")
    fields.require("topk_method", "noaux_tc")
    fields.require_unset("n_shared_experts")
    expert, router = read_gated(fields, "moe_intermediate_size"), RouterSpec(False, True, True)
    experts = read_expert_count(fields, "n_routed_experts")
    return MoeSpec(experts, expert, read_sigmoid_routing(fields), router)
