"""Reads config.json of Zamba."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock import config
from penstock.config import (
    HYBRID,
    MAMBA1,
    Fields,
    LayerSpec,
    NormSpec,
    PlaceSpec,
    Specification,
    layered,
    read_every,
)

FIRST = 3  # layers, the last one with a transformer; those behind them have periods
SIZES = {"hidden_size": 3712, "intermediate_size": 14848, "num_hidden_layers": 76}
SIZES |= dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 16)
SIZES |= {"max_position_embeddings": 4096, "vocab_size": 32000, "tie_word_embeddings": True}
# Of training, and of how transformers runs the model.
RUNNING = "num_logits_to_keep", "use_associative_scan", "use_mamba_kernels"
STEPS = "time_step_min", "time_step_max", "time_step_floor"


def read_zamba(raw: Mapping[str, Any]) -> Specification:
    """Reads the fields, with transformers' defaults. Raises BadModel."""
    fields = Fields(layered(raw, SIZES))
    fields.ignore(*RUNNING, *STEPS)
    fields.require("tie_word_embeddings", True)  # else transformers would share no weights
    fields.require("attention_hidden_size", 2 * fields.count("hidden_size"))
    residual = config.read_residual(fields, norm=NormSpec(fields.number("rms_norm_eps", 1e-5)))
    names = {**MAMBA1, "activation": "hidden_mamba_act"}
    heads = fields.count("n_mamba_heads", 2)
    mamba = LayerSpec(config.read_mamba1(fields, None, names, heads=heads), None)
    later = read_every(fields, "attn_layer", fields.count("num_hidden_layers") - FIRST, (6, 4))
    places = [FIRST - 1, *(layer for layer, here in enumerate(later, FIRST) if here)]
    number, layers = 0, []
    for kind in config.read_place_kinds(fields, places):
        if kind == HYBRID:
            layers.append(_transformer(fields, number))
            number += 1
        layers.append(mamba)
    return config.read_decoder(fields, layers, residual)


def _transformer(fields: Fields, number: int) -> LayerSpec:
    """A place of the shared transformer, whose heads share hidden state and embedding."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("attention_head_dim", 2 * hidden // heads)
    fields.require("head_dim", head_dim)
    scale = (head_dim / 2) ** -0.5
    attention = config.read_attention(fields, None, head_dim=head_dim, scale=scale)
    place = PlaceSpec(0, number, 0, adapts_attention=False)
    return LayerSpec(attention, config.read_mlp(fields, "hidden_act", "gelu"), place=place)
