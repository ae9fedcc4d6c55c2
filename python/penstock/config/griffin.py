"""Reads the layers of Griffin from config.json: gated recurrences, and attention in windows."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.attention_spec import AttentionSpec
from penstock.config.common import read_attention
from penstock.config.fields import Fields
from penstock.config.recurrent_spec import RgLruSpec
from penstock.config.rope import read_rope
from penstock.faults import BadModel, Unsupported

RECURRENT, ATTENTION = "recurrent", "attention"


def read_rg_lru(fields: Fields) -> RgLruSpec:
    """The recurrence, with transformers' defaults: as many blocks of gates as heads."""
    return RgLruSpec(
        channels=fields.count("lru_width", fields.count("hidden_size")),
        heads=fields.count("num_attention_heads"),
        width=fields.count("conv1d_width", 4),
    )


def read_local_attention(fields: Fields) -> AttentionSpec:
    """Attention in a window, where a part of each head rotates and the output has a bias."""
    fields.require("head_dim", fields.count("hidden_size") // fields.count("num_attention_heads"))
    rope = read_rope(fields, partial=True)
    if rope.kind != "default":
        raise Unsupported(
            f"config.json: rope_type {rope.kind!r} is not supported by this family, only 'default'"
        )
    window, bias = fields.count("attention_window_size", 2048), fields.flag("attention_bias")
    return read_attention(fields, rope, window=window, qkv_bias=bias, output_bias=True)


def read_block_types(fields: Fields) -> Sequence[str]:
    """RECURRENT or ATTENTION for each layer, at least one of them with attention: `block_types` of
    config.json, again and again."""
    layers = fields.count("num_hidden_layers")
    pattern = fields.raw.get("block_types") or (RECURRENT, RECURRENT, ATTENTION)
    kinds = RECURRENT, ATTENTION
    known = isinstance(pattern, Sequence) and all(kind in kinds for kind in pattern)
    found = [pattern[layer % len(pattern)] for layer in range(layers)] if known else []
    if ATTENTION not in found:
        raise BadModel(
            f"config.json: block_types must hold {RECURRENT} and {ATTENTION}, the latter for at "
            f"least one of {layers} layers, found {pattern!r}"
        )
    return found
