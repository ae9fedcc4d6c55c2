"""Jamba: layers of Mamba-1, some with attention that has no RoPE, experts in some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import FULL, LINEAR, Fields, LayerSpec, MoeSpec, Specification, layered
from penstock.models.decoder import EXPERT_NAMES, LLAMA_NAMES, Decoder, renamed

LAYER, PATH = "model.layers.{}.", "blocks.{}.attention"
MAMBA_NAMES = {
    LAYER + "mamba": PATH,
    LAYER + "mamba.in_proj": PATH + ".inputs",
    LAYER + "mamba.conv1d": PATH + ".convolution",
    LAYER + "mamba.x_proj": PATH + ".selection.narrow",
    LAYER + "mamba.dt_layernorm": PATH + ".selection.step_norm",
    LAYER + "mamba.b_layernorm": PATH + ".selection.b_norm",
    LAYER + "mamba.c_layernorm": PATH + ".selection.c_norm",
    LAYER + "mamba.dt_proj": PATH + ".selection.step",
    LAYER + "mamba.out_proj": PATH + ".output",
}
# How transformers runs the model, and the context length once more.
IGNORED = (
    *("calc_logits_for_entire_prompt", "n_ctx", "num_logits_to_keep"),
    *("use_associative_scan", "use_mamba_kernels", "use_mambapy"),
)
SIZES = {
    "max_position_embeddings": 262144,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
}


class Jamba(Decoder):
    """Jamba with and without experts."""

    names: ClassVar[Mapping[str, str]] = {
        **{
            name.replace(".mlp.", ".feed_forward."): path
            for name, path in (LLAMA_NAMES | renamed(EXPERT_NAMES, gate="router")).items()
        },
        **MAMBA_NAMES,
        LAYER + "pre_ff_layernorm": "blocks.{}.mlp_norm",
        "model.final_layernorm": "norm",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, SIZES))
        fields.ignore(*IGNORED)
        fields.require("mamba_inner_layernorms", True)
        fields.require_unset("sliding_window", "attention_bias")
        residual, layers = config.read_residual(fields), fields.count("num_hidden_layers")
        mixers: dict[str, Any] = {LINEAR: config.read_mamba1(fields, residual.norm)}
        mixers[FULL] = config.read_attention(fields, None)
        attends = config.read_every(fields, "attn_layer", layers, (8, 4))
        default = [FULL if here else LINEAR for here in attends]
        kinds = config.read_hybrid_types(fields, default, LINEAR)
        dense, experts = config.read_gated(fields, "intermediate_size"), fields.count("num_experts")
        routing = config.read_routing(fields)
        moe = MoeSpec(experts, dense, routing) if experts > 1 else dense
        sparse = config.read_every(fields, "expert_layer", layers, (2, 1))
        mlps = [moe if here else dense for here in sparse]
        specs = [LayerSpec(mixers[kind], mlp) for kind, mlp in zip(kinds, mlps, strict=True)]
        return config.read_decoder(fields, specs, residual)
