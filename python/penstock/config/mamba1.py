"""Reads Mamba-1 layers from config.json, by Jamba's names."""

from __future__ import annotations

from penstock.config.attention_spec import NormSpec
from penstock.config.fields import Fields
from penstock.config.specification import Mamba1Spec


def read_mamba1(fields: Fields, norm: NormSpec | None) -> Mamba1Spec:
    """Mamba-1, with transformers' defaults; `mamba_dt_rank` may be "auto", a sixteenth of the
    hidden size."""
    fields.require("hidden_act", "silu")  # of the convolution and of gates
    hidden = fields.count("hidden_size")
    given = fields.raw.get("mamba_dt_rank")
    rank = -(-hidden // 16) if given in (None, "auto") else fields.count("mamba_dt_rank")
    return Mamba1Spec(
        channels=fields.count("mamba_expand", 2) * hidden,
        state_dim=fields.count("mamba_d_state", 16),
        step_rank=rank,
        width=fields.count("mamba_d_conv", 4),
        norm=norm,
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias"),
    )
