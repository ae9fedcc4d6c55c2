"""Reads Gated DeltaNet, and models that alternate it with attention, from config.json."""

from __future__ import annotations

from dataclasses import replace

from penstock.config.attention_spec import AttentionSpec, Gate, NormKind, NormSpec, QkNorm
from penstock.config.common import AXES, read_attention
from penstock.config.fields import Fields, layered
from penstock.config.layer_types import FULL, LINEAR, periodic, read_hybrid_types
from penstock.config.recurrent_spec import DeltaNetSpec, ProjectionOrder
from penstock.config.rope import read_rope


def read_delta_net(fields: Fields, order: ProjectionOrder) -> DeltaNetSpec:
    """Gated DeltaNet, as Qwen's config.json spells it."""
    fields.require("hidden_act", "silu")  # of the convolution and of the gate
    return DeltaNetSpec(
        key_heads=fields.count("linear_num_key_heads", 16),
        value_heads=fields.count("linear_num_value_heads", 32),
        key_dim=fields.count("linear_key_head_dim", 128),
        value_dim=fields.count("linear_value_head_dim", 128),
        width=fields.count("linear_conv_kernel_dim", 4),
        norm=NormSpec(fields.number("rms_norm_eps", 1e-6)),
        order=order,
    )


def read_hybrid_attention(
    fields: Fields, order: ProjectionOrder
) -> list[AttentionSpec | DeltaNetSpec]:
    """The attention of each layer: every `full_attention_interval`-th one has softmax attention
    with a gate, the others Gated DeltaNet. Raises BadModel."""
    fields.require("attn_output_gate", True)
    fields.require("mamba_ssm_dtype", "float32")  # of states
    interval, layers = fields.count("full_attention_interval", 4), fields.count("num_hidden_layers")
    kinds = read_hybrid_types(fields, periodic(layers, interval, LINEAR), LINEAR)
    full, linear = _gated_attention(fields), read_delta_net(fields, order)
    return [full if kind == FULL else linear for kind in kinds]


def _gated_attention(fields: Fields) -> AttentionSpec:
    defaults = {"partial_rotary_factor": 0.25, "head_dim": 256}
    parameters = fields.raw.get("rope_parameters")
    if isinstance(parameters, dict):
        plain = {name: value for name, value in parameters.items() if name not in AXES}
        fields = Fields(layered({"rope_parameters": plain}, fields.raw))
    fields = Fields(layered(fields.raw, defaults))
    bias = fields.flag("attention_bias")
    attention = read_attention(
        fields,
        read_rope(fields, partial=True),
        qkv_bias=bias,
        output_bias=bias,
        gate=Gate.WITH_QUERIES,
    )
    norm = NormSpec(fields.number("rms_norm_eps", 1e-6), NormKind.RMS_PLUS_ONE)
    return replace(attention, qk_norm=QkNorm(norm))
