"""Reads multi-head latent attention from config.json."""

from __future__ import annotations

from dataclasses import replace

from penstock.config.attention_spec import AttentionSpec, LatentSpec, NormSpec
from penstock.config.fields import Fields
from penstock.config.rope import read_rope, yarn_temperature
from penstock.faults import Unsupported

ROPES = ("default", "yarn")


def read_latent_attention(fields: Fields) -> AttentionSpec:
    """Multi-head latent attention, as DeepSeek's config.json spells it.

    With YaRN, the square of the temperature of `mscale_all_dim` is part of the scores' scale.
    """
    fields.require_unset("attention_bias")
    heads = fields.count("num_attention_heads")
    fields.require("num_key_value_heads", heads)  # of the projections: all heads have their own
    rope = replace(read_rope(fields), interleaved=fields.flag("rope_interleave", True))
    if rope.kind not in ROPES:
        raise Unsupported(
            f"config.json: rope_type {rope.kind!r} is not supported for latent attention, only "
            f"{' and '.join(ROPES)} are"
        )
    has_query_latent = fields.raw.get("q_lora_rank") is not None
    latent = LatentSpec(
        rank=fields.count("kv_lora_rank"),
        rotated=fields.count("qk_rope_head_dim"),
        still=fields.count("qk_nope_head_dim"),
        value=fields.count("v_head_dim"),
        norm=NormSpec(1e-6),  # whatever rms_norm_eps is
        query_rank=fields.count("q_lora_rank") if has_query_latent else 0,
    )
    fields.require("head_dim", latent.rotated)
    fields.require("qk_head_dim", latent.still + latent.rotated)
    scale = (latent.still + latent.rotated) ** -0.5
    if weight := rope.numbers.get("mscale_all_dim"):
        scale *= yarn_temperature(rope.numbers["factor"], weight) ** 2
    row = latent.rank + latent.rotated
    return AttentionSpec(heads, 1, row, scale, rope, latent=latent)
