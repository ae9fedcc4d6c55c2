"""Reads the fields of config.json that most families spell alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.config.fields import Fields
from penstock.config.specification import (
    AttentionSpec,
    LayerSpec,
    NormSpec,
    RopeSpec,
    Specification,
)
from penstock.faults import BadModel

SLIDING, FULL = "sliding_attention", "full_attention"  # entries of layer_types


def read_decoder(fields: Fields, layers: Iterable[LayerSpec], **changes: Any) -> Specification:
    """The specification with these layers; `changes` are fields that the family reads itself."""
    read = {
        "hidden": fields.count("hidden_size"),
        "vocab": fields.count("vocab_size"),
        "max_positions": fields.count("max_position_embeddings"),
        "norm": NormSpec(fields.number("rms_norm_eps", 1e-6)),
        "tied": fields.flag("tie_word_embeddings"),
    }
    return Specification(layers=tuple(layers), **{**read, **changes})


def read_attention(fields: Fields, rope: RopeSpec, **changes: Any) -> AttentionSpec:
    """Grouped-query attention; `changes` are fields that the family reads itself."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", hidden // heads)
    read = {
        "heads": heads,
        "kv_heads": fields.count("num_key_value_heads", heads),
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
    }
    return AttentionSpec(rope=rope, **{**read, **changes})


def read_layer_types(fields: Fields, default: Sequence[str]) -> Sequence[str]:
    """SLIDING or FULL for each layer. `default`, one per layer, holds where the file has none."""
    kinds = fields.raw.get("layer_types") or default
    known = isinstance(kinds, Sequence) and all(kind in (SLIDING, FULL) for kind in kinds)
    if not known or len(kinds) != len(default):
        raise BadModel(
            f"config.json: layer_types must hold {SLIDING} or {FULL} for each of {len(default)} "
            f"layers, found {kinds!r}"
        )
    return kinds
