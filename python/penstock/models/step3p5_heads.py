"""Query heads of Step 3.5's layers: of those with windows they may be others."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config import SLIDING, Fields
from penstock.faults import Unsupported

HEADS, OTHER, OWN = "num_attention_heads", "attention_other_setting", "per_layer_config"


def read_heads(fields: Fields, kinds: Sequence[str]) -> list[int]:
    """Each layer's, by `per_layer_config`, or else by its kind."""
    heads, other = fields.count(HEADS), _published(fields)
    sliding = fields.count("num_sliding_attention_heads", other)
    if fields.raw.get(OWN) is None:
        return [sliding if kind == SLIDING else heads for kind in kinds]
    own = fields.section(OWN)
    layers = [str(layer) for layer in range(len(kinds))]
    sections = [own.section(layer) if layer in own.raw else Fields({}) for layer in layers]
    if unknown := sorted({name for section in sections for name in section.raw} - {HEADS}):
        raise Unsupported(f"config.json: {unknown[0]} of {OWN} is not supported")
    return [section.count(HEADS, heads) for section in sections]


def _published(fields: Fields) -> int:
    """Of layers with windows, as published; their other sizes must be those of all layers."""
    heads, head_dim = fields.count(HEADS), fields.count("head_dim")
    if not fields.raw.get(OTHER):
        return heads
    same = {
        "attention_type": SLIDING,
        "head_dim": head_dim,
        "num_attention_groups": fields.count("num_key_value_heads"),
        "true_head_dim": head_dim,
    }
    other = fields.section(OTHER)
    for name in sorted(set(other.raw) - {HEADS}):
        other.require(name, same.get(name))
    return other.count(HEADS, heads)
