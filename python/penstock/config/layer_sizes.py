"""Reads the heads of layers whose kinds differ in them (Gemma 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config.fields import Fields
from penstock.config.layer_types import FULL
from penstock.faults import Unsupported

SIZES = {"head_dim", "num_key_value_heads"}


def read_layer_sizes(
    fields: Fields, kind: str, layer: int, global_heads: bool
) -> Mapping[str, Any]:
    """What a layer has in place of `head_dim` and `num_key_value_heads`: by `per_layer_config`
    (since transformers 5.23), or else in layers with full attention, by `global_head_dim` and, with
    `global_heads`, `num_global_key_value_heads`."""
    heads = "num_global_key_value_heads"
    fields.ignore(heads, "global_head_dim")
    if fields.raw.get("per_layer_config") is not None:
        own = fields.section("per_layer_config")
        found = own.section(str(layer)).raw if str(layer) in own.raw else {}
        if unknown := sorted(set(found) - SIZES):
            raise Unsupported(
                f"config.json: per_layer_config.{layer}.{unknown[0]} is not supported"
            )
        return found
    if kind != FULL:
        return {}
    sizes = {"head_dim": fields.count("global_head_dim", 512)}
    if global_heads and fields.raw.get(heads) is not None:
        sizes["num_key_value_heads"] = fields.count(heads)
    return sizes
