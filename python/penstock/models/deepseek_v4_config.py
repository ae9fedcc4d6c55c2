"""Reads the config.json of DeepSeek-V4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import (
    Activation,
    Fields,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    RouterSpec,
    Specification,
)
from penstock.faults import BadModel

DEFAULTS = {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6}
SCORES = {"sqrtsoftplus": Score.SQRT_SOFTPLUS, "sigmoid": Score.SIGMOID}
SCORES |= {"softmax": Score.SOFTMAX}
HASH_LAYERS = 3


def read_config(raw: Mapping[str, Any]) -> Specification:
    """Reads the fields, with transformers' defaults. Raises BadModel."""
    fields = Fields(config.layered(raw, DEFAULTS))
    fields.require("swiglu_limit", 10.0)
    fields.require_unset("mlp_bias")
    # Layers that are not loaded, and the format of experts, which their tensors show.
    fields.ignore("num_nextn_predict_layers", "expert_dtype")
    streams = config.read_sinkhorn(fields, averaged=False)
    moe, attention = _read_moe(fields), config.read_shared_key_layers(fields)
    hashed = replace(moe, router=RouterSpec(float32=True, tokens=fields.count("vocab_size")))
    layers = [
        LayerSpec(one, hashed if by_token else moe)
        for one, by_token in zip(attention, _read_hashed(fields, len(attention)), strict=True)
    ]
    return config.read_decoder(fields, layers, config.read_residual(fields, streams=streams))


def _read_moe(fields: Fields) -> MoeSpec:
    """The layers with a choice of experts; gates of shared ones are limited too."""
    fields.require("norm_topk_prob", True)
    fields.require("topk_method", "noaux_tc")
    name = fields.raw.get("scoring_func") or "sqrtsoftplus"
    if name not in SCORES:
        raise BadModel(
            f"config.json: scoring_func {name!r} is not supported, only {', '.join(SCORES)} are"
        )
    scale = fields.positive("routed_scaling_factor", 1.5)
    routing = config.read_routing(fields, score=SCORES[name], renormalise=True, scale=scale)
    moe = config.read_shared_moe(fields, routing, RouterSpec(correction=True, float32=True))
    assert moe.shared is not None
    return replace(moe, expert=_limited(moe.expert), shared=_limited(moe.shared))


def _limited(mlp: MlpSpec) -> MlpSpec:
    return replace(mlp, activation=Activation.LIMITED_SILU)


def _read_hashed(fields: Fields, layers: int) -> list[bool]:
    """Whether the experts of each layer follow from the token: by `mlp_layer_types`, or else in the
    first `num_hash_layers`."""
    kinds = fields.raw.get("mlp_layer_types")
    first = fields.number("num_hash_layers", HASH_LAYERS)
    if kinds is None:
        return [layer < first for layer in range(layers)]
    known = isinstance(kinds, list) and all(kind in ("hash_moe", "moe") for kind in kinds)
    if not known or len(kinds) != layers:
        raise BadModel(
            f"config.json: mlp_layer_types must have hash_moe or moe for each of {layers} layers, "
            f"found {kinds!r}"
        )
    return [kind == "hash_moe" for kind in kinds]
