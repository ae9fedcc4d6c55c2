"""Reads the layers of Inkling 2 from config.json: what Inkling has, and its own."""

from __future__ import annotations

from dataclasses import replace

from penstock_kernels.expert_mlp.experts import GATE_CAP, UP_CAP
from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import (
    Activation,
    BoundsSpec,
    ConvolutionsSpec,
    ExpertStorage,
    Fields,
    Gate,
    LayerSpec,
    MlpSpec,
    NormSpec,
)
from penstock.models.inkling_config import read_attention, read_windows

LENGTHS = {"qk_l2_clip_threshold": 512**0.5, "rel_l2_clip_threshold": 8.0}


def read_layers(fields: Fields, norm: NormSpec) -> list[LayerSpec]:
    """The layers of the specification: the convolutions' states are layers of their own. Raises
    BadModel."""
    hidden, width = fields.count("hidden_size"), fields.count("conv_kernel_size")
    moe, layers = _read_experts(fields), []
    for has_window in read_windows(fields, fields.count("num_hidden_layers")):
        one = _bounded(fields, read_attention(fields, norm, has_window))
        states = ConvolutionsSpec(one.kv_heads, one.head_dim, hidden, width)
        layers += [LayerSpec(states, None), LayerSpec(one, moe)]
    return layers


def _bounded(fields: Fields, attention: config.AttentionSpec) -> config.AttentionSpec:
    assert attention.relative is not None
    heads, factors = (fields.positive(*length) for length in LENGTHS.items())
    relative = replace(
        attention.relative, bounds=BoundsSpec(heads, factors, own_inputs=not attention.window)
    )
    scale = attention.head_dim**-0.5
    return replace(attention, scale=scale, qk_norm=None, gate=Gate.OWN, relative=relative)


def _read_experts(fields: Fields) -> config.MoeSpec:
    fields.require("hidden_act", "silu")
    fields.require("scoring_func", "sigmoid")
    fields.require("mlp_gate_softcap", GATE_CAP)
    fields.require("mlp_up_softcap", UP_CAP)
    scale = fields.positive("route_scale", 8.0)
    return config.MoeSpec(
        config.read_expert_count(fields, "n_routed_experts"),
        MlpSpec(fields.count("moe_intermediate_size"), Activation.SOFTCAPPED_SILU),
        config.read_routing(fields, score=Score.SIGMOID, renormalise=True, scale=scale),
        config.RouterSpec(correction=True, float32=True),
        storage=ExpertStorage.ALTERNATING,
    )
