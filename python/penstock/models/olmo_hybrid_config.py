"""Reads OLMo Hybrid's two kinds of layers from config.json."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config import (
    AttentionSpec,
    DeltaNetSpec,
    Fields,
    NormSpec,
    QkNorm,
    QkNormWidth,
    RopeSpec,
    read_attention,
    read_residual,
    read_rope,
)

TRAINING = (
    *("linear_a_log_max", "linear_a_log_min", "linear_dt_max", "linear_dt_min"),
    "linear_dt_init_floor",
)


def read_full(fields: Fields) -> AttentionSpec:
    """Attention, with a norm of all heads' queries and keys together."""
    bias = fields.flag("attention_bias")
    norm = QkNorm(read_residual(fields).norm, QkNormWidth.FULL)
    rope = _read_rope(fields)
    return read_attention(fields, rope, qkv_bias=bias, output_bias=bias, qk_norm=norm)


def _read_rope(fields: Fields) -> RopeSpec | None:
    """RoPE; none if its base is null, there or at the top level, as in published files."""
    section = fields.raw.get("rope_parameters") or {}
    outer = {"rope_theta": fields.raw["rope_theta"]} if "rope_theta" in fields.raw else {}
    if not isinstance(section, Mapping) or {**outer, **section}.get("rope_theta", 0) is not None:
        return read_rope(fields)
    if section:
        fields.section("rope_parameters").require("rope_type", "default")
    return None


def read_delta_net(fields: Fields) -> DeltaNetSpec:
    """Gated DeltaNet, whose strengths may reach 2."""
    fields.ignore(*TRAINING)
    fields.require("hidden_act", "silu")  # of the convolution; that of the gate is always
    heads = fields.count("num_attention_heads")
    key_heads = fields.count("linear_num_key_heads", heads)
    key_dim = int(0.75 * fields.count("hidden_size") / key_heads)
    key_dim = fields.count("linear_key_head_dim", key_dim)
    return DeltaNetSpec(
        key_heads=key_heads,
        value_heads=fields.count("linear_num_value_heads", heads),
        key_dim=key_dim,
        value_dim=fields.count("linear_value_head_dim", 2 * key_dim),
        width=fields.count("linear_conv_kernel_dim", 4),
        norm=NormSpec(1e-5),  # whatever rms_norm_eps is
        most=2.0 if fields.flag("linear_allow_neg_eigval", True) else 1.0,
    )
