"""Reads what layers of MiMo-V2-Flash differ in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import (
    FULL,
    SLIDING,
    AttentionSpec,
    Fields,
    RopeSpec,
    layered,
    read_attention,
    read_rope,
)

# Lists of 0 and 1 in published files, and what transformers has in their place.
LISTS = {
    "hybrid_layer_pattern": ("layer_types", (FULL, SLIDING)),
    "moe_layer_freq": ("mlp_layer_types", ("dense", "sparse")),
}


def read_lists(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The kinds of layers, in transformers' words, where the file lists numbers."""
    found = {}
    for name, (newer, kinds) in LISTS.items():
        given = raw.get(name)
        if isinstance(given, list):
            found[newer] = [kinds[number] if number in (0, 1) else number for number in given]
        elif given is not None:
            found[newer] = given  # its reader refuses it
    return found


def read_attention_of(fields: Fields, kind: str) -> AttentionSpec:
    """The attention of a kind of layer: with windows, it has twice as many KV heads, and sinks."""
    slides = kind == SLIDING
    kv_heads, values = fields.count("num_key_value_heads"), fields.count("v_head_dim")
    sinks = {
        SLIDING: fields.flag("add_swa_attention_sink_bias", True),
        FULL: fields.flag("add_full_attention_sink_bias"),
    }
    window = fields.count("sliding_window_size", fields.count("sliding_window") - 1) + 1
    attention = read_attention(
        fields,
        _rope(fields, kind),
        kv_heads=kv_heads * (2 if slides else 1),
        window=window if slides else 0,
        qkv_bias=fields.flag("attention_bias"),
        sinks=sinks[kind],
        value_dim=values,
        value_scale=fields.positive("attention_value_scale", 1.0),
    )
    fields.require("swa_num_attention_heads", attention.heads)
    fields.require("swa_num_key_value_heads", 2 * kv_heads)
    fields.require("swa_head_dim", attention.head_dim)
    fields.require("swa_v_head_dim", values)
    return attention


def _rope(fields: Fields, kind: str) -> RopeSpec:
    theta = 5e6 if kind == FULL else fields.positive("swa_rope_theta", 1e4)
    if not fields.raw.get("rope_parameters"):
        fields.require_unset("rope_scaling")  # which kind of layer it would scale is not said
    if kind == SLIDING and not fields.raw.get("rope_parameters"):
        fields = Fields(layered({"rope_theta": theta}, fields.raw))
    return read_rope(fields, layer_type=kind, theta=theta, partial=True)
