"""Hunyuan 4: GLM-5's sparse attention with a gate and sinks, experts, several residual streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock import config
from penstock.config import Activation, Fields, LayerSpec, MoeSpec, Specification
from penstock.models.deepseek_v32 import DeepseekV32, GlmMoeDsa
from penstock.models.qwen_hybrid_moe import STACKED_NAMES, Qwen35MoeText
from penstock.weights import Shapes

DEFAULTS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "n_shared_experts": 1}
DEFAULTS |= {"index_head_dim": 128, "index_n_heads": 16, "index_topk": 2048}
FLOATS = {"rms_norm_eps": 1e-5, "routed_scaling_factor": 2.827}
LAYER, PATH = "model.layers.{}.", "blocks.{}."
CONNECTIONS = {
    f"{LAYER}hc_pre.hc_{theirs}_layer.hc_{name}": f"{PATH}{ours}_streams.logits.{part}"
    for theirs, ours in (("attn", "attention"), ("mlp", "mlp"))
    for name, part in (("fn", "matrix"), ("base", "base"), ("scale", "scale"))
}
HEAD = "model.hc_pre.hc_head.hc_head_"


class HyV4(GlmMoeDsa):
    """Hunyuan 4 preview."""

    names: ClassVar[Mapping[str, str]] = {
        **DeepseekV32.names,
        **STACKED_NAMES,
        # Of experts in mxfp8, by the names that vLLM reads.
        LAYER + "mlp.experts.gate_up_proj_scale": PATH + "mlp.experts.gate_up.weight_scale",
        LAYER + "mlp.experts.down_proj_scale": PATH + "mlp.experts.down.weight_scale",
        **CONNECTIONS,
        HEAD + "fn": "streams.logits.matrix",
        HEAD + "base": "streams.logits.base",
        HEAD + "scale": "streams.logits.scale",
        LAYER + "self_attn.linear_gate": PATH + "attention.qkv.gate",
        LAYER + "self_attn.learnable_sink_param": PATH + "attention.sinks",
    }
    # As transformers writes them.
    older: ClassVar[Mapping[str, str]] = {
        f".{mlp}.linear_gate.": f".{mlp}.gate_proj." for mlp in ("mlp", "shared_experts")
    }
    ignored = (*GlmMoeDsa.ignored, r"model\.mtp_layers\..*")

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(config.layered(raw, DEFAULTS, FLOATS))
        fields.require("swiglu_limit", 10.0)
        fields.ignore("num_nextn_predict_layers")  # layers that are not loaded
        residual = config.read_residual(fields, streams=config.read_streams(fields))
        attention, moe = config.read_gated_indexed_attention(fields), cls.moe(fields)
        dense, count = (
            config.read_gated(fields, "intermediate_size"),
            fields.count("num_hidden_layers"),
        )
        sparse = config.read_listed_sparse_layers(fields, count)
        layers = [LayerSpec(attention, moe if has_experts else dense) for has_experts in sparse]
        kinds = fields.raw.get("indexer_types")
        if kinds is None:
            kinds = ["full" if i == 0 or i % 4 == 1 else "shared" for i in range(count)]
        shared = config.shared_indexers(kinds, count)
        return config.read_decoder(fields, config.with_shared_indexers(layers, shared), residual)

    @classmethod
    def moe(cls, fields: Fields) -> MoeSpec:
        """Reads the layers with experts; only the gates of routed ones are limited."""
        moe = config.read_corrected_moe(fields)
        return replace(moe, expert=replace(moe.expert, activation=Activation.LIMITED_SILU))

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Finds out how the experts are stored."""
        return Qwen35MoeText.as_stored(spec, shapes)
