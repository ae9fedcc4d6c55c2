"""Reads Mamba-2 layers from config.json, whose fields families name differently."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penstock.config.attention_spec import NormSpec
from penstock.config.fields import Fields, Renamed, layered
from penstock.config.recurrent_spec import Mamba2Spec
from penstock.faults import BadModel

# Names of the fields: those of Granite 4 and Bamba.
MAMBA = {
    "heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "groups": "mamba_n_groups",
    "state": "mamba_d_state",
    "width": "mamba_d_conv",
    "conv_bias": "mamba_conv_bias",
    "bias": "mamba_proj_bias",
    "chunk": "mamba_chunk_size",
}


def read_mamba(
    fields: Fields,
    norm: NormSpec | None,
    defaults: Mapping[str, Any],
    names: Mapping[str, str] = MAMBA,
    **changes: Any,
) -> Mamba2Spec:
    """Mamba-2 by these names; `defaults` are of transformers' configuration, `changes` fields that
    the family reads itself."""
    named = Renamed(fields.raw, {field: name for name, field in names.items()})
    given = Fields(layered(named, defaults))
    return Mamba2Spec(
        heads=given.count("heads"),
        head_dim=given.count("head_dim"),
        groups=given.count("groups"),
        state_dim=given.count("state"),
        width=given.count("width"),
        norm=norm,
        conv_bias=given.flag("conv_bias", True),
        bias=given.flag("bias"),
        step_limits=_step_limits(fields),
        **changes,
    )


def with_head_dim(fields: Fields) -> Fields:
    """The fields with `mamba_d_head`, which may be "auto": what the heads share, `mamba_d_ssm` or
    `mamba_expand` times the hidden size."""
    raw = fields.raw
    heads, expanded = fields.count("mamba_n_heads", 128), fields.count("mamba_expand", 2)
    inner = fields.count("mamba_d_ssm", expanded * fields.count("hidden_size"))
    given = None if raw.get("mamba_d_head") == "auto" else raw.get("mamba_d_head")
    found = Fields(layered({"mamba_d_head": given or inner // heads}, raw))
    if found.count("mamba_d_head") * heads != inner:
        raise BadModel(
            f"config.json: {heads} Mamba heads of {found.raw['mamba_d_head']} are not {inner} "
            "elements, as mamba_d_ssm or mamba_expand say"
        )
    return found


def _step_limits(fields: Fields) -> tuple[float, float]:
    """`time_step_limit`; JSON has several spellings of infinity."""
    found = fields.raw.get("time_step_limit")
    if found is None:
        return 0.0, math.inf
    spelled = (math.inf, "Infinity", {"__float__": "Infinity"})
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise BadModel(f"config.json: time_step_limit must be two numbers, found {found!r}")
    least = Fields({"time_step_limit": found[0]}).number("time_step_limit")
    if found[1] in spelled:
        return float(least), math.inf
    return float(least), Fields({"time_step_limit": found[1]}).positive("time_step_limit")
