"""Reads the kind of each layer, `layer_types`, from config.json."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.fields import Fields
from penstock.faults import BadModel

# Entries of layer_types.
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
CONV = "conv"
CHUNKED = "chunked_attention"


def periodic(layers: int, period: int, other: str = SLIDING) -> list[str]:
    """Returns FULL for the last layer of each period, and `other` for the others."""
    return [other if (i + 1) % period else FULL for i in range(layers)]


# Names of kinds before transformers 5.
OLDER = {"mamba": LINEAR, "attention": FULL}


def read_hybrid_types(fields: Fields, default: Sequence[str], other: str) -> Sequence[str]:
    """As `read_layer_types`, where `other` is recurrent: at least one layer must have
    attention."""
    kinds = read_layer_types(fields, default, other)
    if FULL not in kinds:
        raise BadModel(f"config.json: layer_types must hold {FULL} for at least one layer")
    return kinds


def read_layer_types(
    fields: Fields, default: Sequence[str], other: str = SLIDING, full: str = FULL
) -> Sequence[str]:
    """`full` or `other` for each layer. `default`, one per layer, holds where the file has none."""
    kinds = fields.raw.get("layer_types") or default
    if other == LINEAR and isinstance(kinds, list):
        kinds = [OLDER.get(kind, kind) for kind in kinds]
    known = isinstance(kinds, Sequence) and all(kind in (other, full) for kind in kinds)
    if not known or len(kinds) != len(default):
        raise BadModel(
            f"config.json: layer_types must hold {other} or {full} for each of {len(default)} "
            f"layers, found {kinds!r}"
        )
    return kinds


def read_every(fields: Fields, name: str, layers: int, default: tuple[int, int]) -> Sequence[bool]:
    """Whether each layer is one of those that `name`_period and `name`_offset choose: one of every
    period, from the offset on. `default` holds where the file has none. Raises BadModel."""
    period, offset = (
        fields.count(f"{name}_period", default[0]),
        fields.number(f"{name}_offset", default[1]),
    )
    if offset not in range(period):
        raise BadModel(
            f"config.json: {name}_offset must be a whole number below {name}_period, {period}, "
            f"found {offset!r}"
        )
    return [layer % period == offset for layer in range(layers)]


def read_three_types(fields: Fields, default: Sequence[str], other: str) -> Sequence[str]:
    """FULL, SLIDING or the recurrent `other` for each layer; at least one has attention."""
    kinds = fields.raw.get("layer_types") or default
    known = isinstance(kinds, Sequence) and all(kind in (other, SLIDING, FULL) for kind in kinds)
    if not known or len(kinds) != len(default) or set(kinds) == {other}:
        raise BadModel(
            f"config.json: layer_types must hold {other}, {SLIDING} or {FULL} for each of "
            f"{len(default)} layers, and not {other} for all, found {kinds!r}"
        )
    return kinds


def read_rotating_layers(fields: Fields, layers: int) -> list[bool]:
    """Whether each layer has RoPE: 1 and 0 in `no_rope_layers`, or else in all but the last of each
    `no_rope_layer_interval` layers."""
    period = fields.count("no_rope_layer_interval", 4)
    found = fields.raw.get("no_rope_layers")
    if not found:
        return [(i + 1) % period != 0 for i in range(layers)]
    if not isinstance(found, list) or len(found) < layers or not all(n in (0, 1) for n in found):
        raise BadModel(
            f"config.json: no_rope_layers must hold 0 or 1 for each of {layers} layers, found "
            f"{found!r}"
        )
    return [bool(number) for number in found[:layers]]


def read_kv_layers(fields: Fields, kinds: Sequence[str]) -> list[int | None]:
    """For each layer, the layer whose keys and values it reads; None = its own. The last
    `num_kv_shared_layers` read those of the last layer of their kind before them."""
    shared = fields.number("num_kv_shared_layers", 0)
    own = kinds[: len(kinds) - int(shared)]
    if shared != int(shared) or not 0 <= shared < len(kinds) or set(own) != set(kinds):
        raise BadModel(
            f"config.json: num_kv_shared_layers is {shared!r}; before these, of {len(kinds)} "
            "layers, there must be a layer of each kind"
        )
    last = {kind: layer for layer, kind in enumerate(own)}
    return [None if layer < len(own) else last[kind] for layer, kind in enumerate(kinds)]
