"""Reads the configuration of Muse Glimmer's text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock import config
from penstock.config import FULL, SLIDING, AttentionSpec, Fields, Gate, NormKind, NormSpec, QkNorm
from penstock.faults import Unsupported

# What transformers assumes where config.json lacks a field.
DEFAULTS: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128}
DEFAULTS |= {"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "post_norm_eps": 1e-8}
DEFAULTS |= {"sliding_window": 2048, "final_logit_softcapping": 20.0, "qk_scale_factor": 3.87}
DEFAULTS |= {"output_multiplier": 0.19611613513818404, "num_hidden_layers": 52}
THETAS = "layer_rope_theta"


def read_muse_glimmer(raw: Mapping[str, Any]) -> config.Specification:
    """Reads the fields of `text_config`. Raises BadModel."""
    fields = Fields(config.layered(raw, DEFAULTS))
    fields.require("tie_word_embeddings", False)
    eps = fields.number("rms_norm_eps")
    behind = NormSpec(fields.number("post_norm_eps"), NormKind.RMS_PLUS_ONE)
    residual = config.read_residual(
        fields, norm=replace(behind, eps=eps), placement=config.Placement.SANDWICH
    )
    mlp = config.read_mlp(fields, "hidden_activation", "silu")
    return config.read_decoder(
        fields,
        [config.LayerSpec(attention, mlp) for attention in _attentions(fields)],
        replace(residual, output_norm=behind),
        embedding_eps=eps,
        final_norm=NormSpec(eps),
        logits_scale=fields.positive("output_multiplier"),
        logits_softcap=fields.optional("final_logit_softcapping"),
    )


def _attentions(fields: Fields) -> list[AttentionSpec]:
    count = fields.count("num_hidden_layers")
    wide = [(count - 1 - layer) % 4 == 0 for layer in range(count)]
    kinds = config.read_layer_types(fields, [FULL if one else SLIDING for one in wide])
    window = fields.count("sliding_window") if SLIDING in kinds else 0
    rope = config.read_rope(fields)
    thetas = [0.0 if one else rope.theta for one in wide]
    if fields.raw.get(THETAS) is not None:
        thetas = [one.number(THETAS) for one in fields.each(THETAS, count)]
    if others := {*thetas} - {0, rope.theta}:
        raise Unsupported(
            f"config.json: {THETAS} {min(others)} is not supported, only 0 and rope_theta are"
        )
    plain = QkNorm(NormSpec(fields.number("rms_norm_eps"), learned=False))
    attention = config.read_attention(fields, rope, qk_norm=plain, gate=Gate.OWN)
    attention = replace(attention, scale=attention.scale * fields.positive("qk_scale_factor"))
    return [
        replace(attention, window=window * (kind == SLIDING), rope=rope if theta else None)
        for kind, theta in zip(kinds, thetas, strict=True)
    ]
