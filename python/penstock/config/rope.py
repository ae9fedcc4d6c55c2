"""Reads rotary position embeddings from config.json."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.fields import Fields
from penstock.config.specification import RopeSpec
from penstock.faults import BadModel

# Numbers of each kind of RoPE, and those that YaRN may have.
ORIGINAL = "original_max_position_embeddings"
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_YARN = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def read_rope(fields: Fields) -> RopeSpec:
    """RoPE, spelled `rope_theta` + `rope_scaling` or, since transformers 5, `rope_parameters`.

    `original_max_position_embeddings` falls back to the model's maximum, as transformers has it.
    """
    raw = fields.raw.get("rope_scaling") or fields.raw.get("rope_parameters") or {}
    if not isinstance(raw, dict):
        raise BadModel(f"config.json: rope_parameters must be an object, found {raw!r}")
    numbers = Fields(raw)
    theta = numbers.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    if theta <= 1:
        raise BadModel(f"config.json: rope_theta must be above 1, found {theta!r}")
    numbers.require("partial_rotary_factor", 1.0)
    fields.require("partial_rotary_factor", 1.0)
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if not isinstance(kind, str) or kind not in _NEEDS:
        raise BadModel(
            f"config.json: rope_type {kind!r} is not supported, only {sorted(_NEEDS)} are"
        )
    read = {name: numbers.positive(name) for name in _NEEDS[kind]}
    for name in _YARN if kind == "yarn" else ():
        if raw.get(name):
            read[name] = numbers.positive(name)
    read["truncate"] = numbers.flag("truncate", True)
    original = numbers if raw.get(ORIGINAL) else fields
    read[ORIGINAL] = original.count(ORIGINAL, fields.count("max_position_embeddings"))
    return RopeSpec(kind, theta, read)
