"""Reads rotary position embeddings from config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penstock.config.attention_spec import NTK, RopeSpec
from penstock.config.fields import Fields, ReadFields, layered
from penstock.config.layer_types import FULL, SLIDING
from penstock.faults import BadModel, Unsupported

# Numbers that each kind of RoPE needs, lists of numbers, and numbers that it may have.
ORIGINAL, FRACTION = "original_max_position_embeddings", "partial_rotary_factor"
PROPORTIONAL = "proportional"
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    NTK: ("factor",),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": (),
    PROPORTIONAL: (),
}
_LISTS: Mapping[str, tuple[str, ...]] = {"longrope": ("short_factor", "long_factor")}
_MAY: Mapping[str, tuple[str, ...]] = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    "longrope": ("factor", "attention_factor", "short_mscale", "long_mscale"),
    PROPORTIONAL: ("factor",),
}


def read_rope(
    fields: Fields,
    *,
    layer_type: str | None = None,
    theta: float = 10000.0,
    partial: bool = False,
) -> RopeSpec:
    """RoPE, spelled `rope_theta` + `rope_scaling` or, since transformers 5, `rope_parameters`.

    Args:
        layer_type: the kind of layer to read, for families whose kinds differ; None = all alike.
        theta: the base where config.json has none.
        partial: whether the family may rotate a part of each head.

    `original_max_position_embeddings` falls back to the model's maximum, as transformers has it.
    """
    raw = ReadFields(_parameters(fields, layer_type), "rope_parameters.")
    numbers = Fields(raw)
    numbers.ignore("finetuned", "max_position_embeddings", ORIGINAL)
    theta = numbers.positive("rope_theta", fields.positive("rope_theta", theta))
    if theta <= 1:
        raise BadModel(f"config.json: rope_theta must be above 1, found {theta!r}")
    fraction = numbers.positive(FRACTION, fields.positive(FRACTION, 1.0))
    kinds = raw.get("rope_type"), raw.get("type")
    kind = kinds[0] or kinds[1] or "default"
    if not partial and kind != PROPORTIONAL:
        numbers.require(FRACTION, 1.0)
        fields.require(FRACTION, 1.0)
    if not isinstance(kind, str) or kind not in _NEEDS:
        raise Unsupported(
            f"config.json: rope_type {kind!r} is not supported, only {sorted(_NEEDS)} are"
        )
    read = _numbers(fields, numbers, kind)
    if kind == PROPORTIONAL:  # some pairs of the whole head rotate, not a part of it
        if fraction > 1:
            raise BadModel(f"config.json: {FRACTION} must be at most 1, found {fraction!r}")
        read, fraction = {**read, "share": fraction}, 1.0
    spec = RopeSpec(kind, theta, read, fraction)
    raw.refuse_unread()
    return spec


def with_rope(raw: Mapping[str, Any], default: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields, with `default` as `rope_parameters` where config.json has none, or null."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling")
    return raw if given else layered({"rope_parameters": default}, raw)


def with_rotary_dim(fields: Fields) -> Fields:
    """The fields with a `partial_rotary_factor`, where config.json has `rotary_dim` in its place:
    how many of a head's leading dimensions rotate. Raises BadModel if it has both, and they
    differ."""
    if fields.raw.get("rotary_dim") is None:
        return fields
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", max(hidden // heads, 1))
    fraction = fields.count("rotary_dim") / head_dim
    fields.require(FRACTION, fraction)
    return Fields(layered({FRACTION: fraction}, fields.raw))


def yarn_positions(rope: RopeSpec | None) -> int:
    """The positions to which YaRN stretches, 0 for other kinds.

    Model cards say to add YaRN and to leave `max_position_embeddings` as it is.
    """
    if rope is None or rope.kind != "yarn":
        return 0
    return int(rope.numbers[ORIGINAL] * rope.numbers["factor"])


def yarn_temperature(factor: float, weight: float) -> float:
    """Factor of queries and keys for context lengths `factor` times as long (arXiv:2309.00071)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _parameters(fields: Fields, layer_type: str | None) -> dict[str, Any]:
    """The object that describes RoPE, of one kind of layer where config.json tells them apart."""
    older, newer = fields.raw.get("rope_scaling"), fields.raw.get("rope_parameters")
    raw = older or newer or {}
    if isinstance(raw, dict) and (FULL in raw or SLIDING in raw):
        if layer_type is None:
            raise Unsupported("config.json: rope_parameters per layer type are not supported")
        raw = raw.get(layer_type) or {}
    elif layer_type is not None and fields.raw.get("rope_parameters"):
        raise BadModel(
            f"config.json: rope_parameters must have an object for {FULL} and for {SLIDING}"
        )
    if not isinstance(raw, dict):
        raise BadModel(f"config.json: rope_parameters must be an object, found {raw!r}")
    return raw


def _numbers(fields: Fields, numbers: Fields, kind: str) -> dict[str, Any]:
    read: dict[str, Any] = {name: numbers.positive(name) for name in _NEEDS[kind]}
    read |= {name: numbers.positives(name) for name in _LISTS.get(kind, ())}
    for name in _MAY.get(kind, ()):
        if numbers.raw.get(name):
            read[name] = numbers.positive(name)
    read["truncate"] = numbers.flag("truncate", True)
    original = fields if fields.raw.get(ORIGINAL) else numbers
    longest = fields.count("max_position_embeddings")
    read[ORIGINAL] = original.count(ORIGINAL, longest)
    if kind == "longrope":
        read.setdefault("factor", longest / read[ORIGINAL])
    if kind == NTK:  # as transformers has it
        read[ORIGINAL] = longest
    return read
