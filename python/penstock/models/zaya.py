"""ZAYA1: compressed convolutional attention, routers that are MLPs, a scaled residual stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, Specification, layered, read_decoder, read_residual
from penstock.layers import Build, CcaBlock, ScaledStream
from penstock.models.decoder import Decoder
from penstock.models.zaya_config import DEFAULTS, read_layers, with_common_ropes

LAYER, PATH = "model.layers.{}.", "blocks.{}."
INPUTS, ROUTER = LAYER + "self_attn.qkv_proj.", LAYER + "mlp.gate."
SCALES = {
    f"{LAYER}post_{theirs}_residual_scale.{name}": f"{PATH}{theirs}_scale.{tensor}"
    for theirs in ("attention", "mlp")
    for name, tensor in (
        ("hidden_states_scale", "output_factor"),
        ("hidden_states_bias", "output_bias"),
        ("residual_scale", "stream_factor"),
        ("residual_bias", "stream_bias"),
    )
}


class Zaya(Decoder):
    """ZAYA1 8B and its base model."""

    names: ClassVar[Mapping[str, str]] = {
        **SCALES,
        "model.embed_tokens": "embedding",
        "model.input_hidden_states_scale": "streams.factor",
        "model.input_hidden_states_bias": "streams.bias",
        LAYER + "input_layernorm": PATH + "attention_norm",
        INPUTS + "q_proj": PATH + "attention.qkv.q",
        INPUTS + "k_proj": PATH + "attention.qkv.k",
        INPUTS + "v_proj_current": PATH + "attention.qkv.v_current",
        INPUTS + "v_proj_delayed": PATH + "attention.qkv.v_delayed",
        INPUTS + "conv_qk_depthwise": PATH + "attention.convolutions.channels",
        INPUTS + "conv_qk_grouped": PATH + "attention.convolutions.heads",
        LAYER + "self_attn.qk_norm.temp": PATH + "attention.factors",
        LAYER + "self_attn.o_proj": PATH + "attention.out",
        LAYER + "post_attention_layernorm": PATH + "mlp_norm",
        ROUTER + "down_proj": PATH + "mlp.router.narrow",
        ROUTER + "router_states_scale": PATH + "mlp.router.depth_scale",
        ROUTER + "router_mlp.norm": PATH + "mlp.router.norm",
        ROUTER + "router_mlp.fc1": PATH + "mlp.router.first",
        ROUTER + "router_mlp.fc2": PATH + "mlp.router.second",
        ROUTER + "router_mlp.out_proj": PATH + "mlp.router.scores",
        ROUTER + "balancing_biases": PATH + "mlp.router.correction",
        LAYER + "mlp.experts.gate_up_proj": PATH + "mlp.experts.gate_up.weight",
        LAYER + "mlp.experts.down_proj": PATH + "mlp.experts.down.weight",
        "model.norm": "norm",
        "lm_head": "head",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(with_common_ropes(raw), DEFAULTS))
        bias = fields.flag("lm_head_bias")
        return read_decoder(fields, read_layers(fields), read_residual(fields), head_bias=bias)

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> CcaBlock:
        """Builds block `index`."""
        return CcaBlock(spec, build, index)

    @staticmethod
    def stream_ends(spec: Specification, build: Build) -> ScaledStream:
        """Builds how the stream begins and ends."""
        return ScaledStream(build, spec.residual.hidden)
