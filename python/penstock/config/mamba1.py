"""Reads Mamba-1 layers from config.json, whose fields families name differently."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.attention_spec import NormSpec
from penstock.config.fields import Fields
from penstock.config.recurrent_spec import Mamba1Spec

# Names of the fields: those of Jamba.
MAMBA1 = {
    "activation": "hidden_act",
    "expand": "mamba_expand",
    "state": "mamba_d_state",
    "rank": "mamba_dt_rank",
    "width": "mamba_d_conv",
    "conv_bias": "mamba_conv_bias",
    "bias": "mamba_proj_bias",
}


def read_mamba1(
    fields: Fields,
    norm: NormSpec | None,
    names: Mapping[str, str] = MAMBA1,
    channels: int | None = None,
    heads: int | None = None,
) -> Mamba1Spec:
    """Mamba-1 by these names, with transformers' defaults. The rank of the steps may be "auto", a
    sixteenth of the hidden size. `channels`: if a field says so itself. `heads`: if the family has
    any."""
    fields.require(names["activation"], "silu")  # of the convolution and of gates
    hidden, expand = fields.count("hidden_size"), fields.count(names["expand"], 2)
    given = fields.raw.get(names["rank"])
    rank = -(-hidden // 16) if given in (None, "auto") else fields.count(names["rank"])
    return Mamba1Spec(
        channels=channels or expand * hidden,
        state_dim=fields.count(names["state"], 16),
        step_rank=rank,
        width=fields.count(names["width"], 4),
        norm=norm,
        conv_bias=fields.flag(names["conv_bias"], True),
        bias=fields.flag(names["bias"]),
        heads=heads,
    )
