"""Reads Kimi Delta Attention, and which layers have it, from config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config.common import read_residual
from penstock.config.fields import Fields
from penstock.config.layer_types import FULL, LINEAR
from penstock.config.recurrent_spec import KimiDeltaSpec
from penstock.faults import BadModel

DECAY_BOUND = -5.0


def read_kimi_section(raw: Mapping[str, Any]) -> Fields:
    """The object that describes the layers with linear attention; empty if there is none."""
    name = "linear_attn_config"
    return Fields({}) if raw.get(name) is None else Fields(raw).section(name)


def read_kimi_delta(fields: Fields, linear: Fields) -> KimiDeltaSpec:
    """Kimi Delta Attention; published files describe it in an object of its own."""
    fields.require("hidden_act", "silu")  # of the convolution; that of the gate is always sigmoid
    return KimiDeltaSpec(
        heads=linear.count("num_heads", fields.count("linear_num_heads", 32)),
        head_dim=linear.count("head_dim", fields.count("linear_head_dim", 128)),
        width=linear.count("short_conv_kernel_size", fields.count("linear_conv_kernel_dim", 4)),
        norm=read_residual(fields).norm,
    )


def read_decay_bound(fields: Fields, linear: Fields) -> float:
    """The least logarithm of what a token leaves of a state, as GLM-5-next spells it: null means
    that there is no bound, unless a field asks for one. Raises BadModel."""
    is_safe = linear.flag("safe_gate", bool(linear.raw))
    name = "linear_lower_bound"
    found = linear.raw.get("gate_lower_bound", fields.raw.get(name, DECAY_BOUND))
    if found is None:
        return DECAY_BOUND if is_safe else 0.0
    bound = Fields({name: found}).number(name)
    if bound >= 0:
        raise BadModel(f"config.json: {name} must be below 0, found {found!r}")
    return bound


def read_kimi_kinds(linear: Fields, layers: int) -> Sequence[str]:
    """The kind of each layer, from lists that count from 1; without them, every fourth layer from
    the fifth on is full. Raises BadModel."""
    names = "full_attn_layers", "kda_layers"
    given = [linear.raw.get(name) for name in names]
    if given == [None, None]:
        return [LINEAR if i == 0 or i % 4 else FULL for i in range(layers)]
    full, delta = ([*listed] if isinstance(listed, list) else [] for listed in given)
    places = range(1, layers + 1)
    if len(full + delta) != layers or any(at not in full + delta for at in places):
        raise BadModel(
            f"config.json: {' and '.join(names)} must list each layer from 1 to {layers} once, "
            f"found {given[0]!r} and {given[1]!r}"
        )
    return [FULL if at in full else LINEAR for at in places]
