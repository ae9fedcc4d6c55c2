"""Published fields of Dots3-Note, by the names and in the shape that transformers gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config import FULL, SLIDING, Fields
from penstock.faults import BadModel, Unsupported

INDEXED = "indexed_attention"
KINDS = (INDEXED, FULL, SLIDING)
# Of layers with windows, where the field is "swa_" and this name.
SLIDING_SIZES = {"num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 256}
SLIDING_SIZES |= {"q_lora_rank": 1024, "kv_lora_rank": 1024}
SLIDING_SIZES |= {"qk_nope_head_dim": 192, "v_head_dim": 128}
ROTATED = "qk_rope_head_dim"
THETA, SLIDING_THETA = 8e7, 5e4


def read_kinds(fields: Fields, layers: int) -> list[str]:
    """The kind of each layer. Published files call layers with an indexer full, unless `use_dsa` is
    false; those that transformers wrote have `per_layer_config` too. Raises BadModel."""
    indexes, slides = fields.flag("use_dsa", True), fields.flag("use_sliding_window", True)
    listed = fields.raw.get("layer_types")
    if listed is None:
        full = INDEXED if indexes else FULL
        return [full if not slides or i < 2 or i % 4 == 1 else SLIDING for i in range(layers)]
    known = isinstance(listed, list) and all(kind in KINDS for kind in listed)
    if not known or len(listed) != layers:
        raise BadModel(
            f"config.json: layer_types must hold {', '.join(KINDS)} for each of {layers} layers, "
            f"found {listed!r}"
        )
    if fields.raw.get("use_dsa") is None and fields.raw.get("per_layer_config") is not None:
        return list(listed)
    old, new = (FULL, INDEXED) if indexes else (INDEXED, FULL)
    return [new if kind == old else kind for kind in listed]


def read_sizes(fields: Fields, kinds: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    """What each layer has in place of the model's sizes. Raises BadModel."""
    sliding = _sliding_sizes(fields)
    if fields.raw.get("per_layer_config") is None:
        return [sliding if kind == SLIDING else {} for kind in kinds]
    own = fields.section("per_layer_config")
    found = [dict(own.section(str(i)).raw) if str(i) in own.raw else {} for i in range(len(kinds))]
    for i, sizes in enumerate(found):
        if unknown := sorted(sizes.keys() - sliding.keys()):
            name = f"per_layer_config.{i}.{unknown[0]}"
            raise Unsupported(f"config.json: {name} is not supported")
    return found


def _sliding_sizes(fields: Fields) -> dict[str, int]:
    sizes = {name: fields.count(f"swa_{name}", size) for name, size in SLIDING_SIZES.items()}
    rotated = sizes["head_dim"] - sizes["qk_nope_head_dim"]
    return {**sizes, ROTATED: fields.count(f"swa_{ROTATED}", rotated)}


def read_theta(fields: Fields, kind: str) -> float:
    """The base of a kind's RoPE. Raises BadModel for any RoPE but the default."""
    theta = fields.positive("rope_theta", THETA)
    sliding = fields.positive("swa_rope_theta", SLIDING_THETA)
    given = fields.raw.get("rope_parameters") or fields.raw.get("rope_scaling")
    if not given:
        return sliding if kind == SLIDING else theta
    own = given
    if isinstance(given, Mapping) and any(name in given for name in KINDS):
        own = given.get(kind)
    if not isinstance(own, Mapping):
        raise BadModel(
            f"config.json: rope_parameters must be an object, or have one for {kind}, found {own!r}"
        )
    Fields(own).require("rope_type", "default")
    Fields(own).require("type", "default")
    return Fields(own).positive("rope_theta", theta)
