"""Reads the layers of Inkling from config.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock_kernels.route_experts import Score

from penstock import config
from penstock.config import ConvolutionsSpec, ExpertStorage, Fields, LayerSpec, NormSpec
from penstock.faults import BadModel

KINDS = {"hybrid": False, "hybrid_sliding": True}  # whether a layer has a window
PERIOD = 6  # of layers where config.json does not list them; the last one has no window


def read_layers(fields: Fields, norm: NormSpec, storage: ExpertStorage) -> list[LayerSpec]:
    """The layers: the convolutions' states are some of their own. Raises BadModel."""
    windows = read_windows(fields, fields.count("num_hidden_layers"))
    sparse = config.read_listed_sparse_layers(fields, len(windows))
    hidden, width = fields.count("hidden_size"), fields.count("conv_kernel_size")
    dense, moe = config.read_gated(fields, "intermediate_size"), _read_experts(fields, storage)
    layers = []
    for has_window, is_sparse in zip(windows, sparse, strict=True):
        one = read_attention(fields, norm, has_window)
        states = ConvolutionsSpec(one.kv_heads, one.head_dim, hidden, width)
        layers += [LayerSpec(states, None), LayerSpec(one, moe if is_sparse else dense)]
    return layers


def read_windows(fields: Fields, layers: int) -> Sequence[bool]:
    """Whether each layer has a window. Raises BadModel."""
    kinds: Any = fields.raw.get("layer_types")
    local: Any = fields.raw.get("local_layer_ids")
    if local is None:
        local = [layer for layer in range(layers) if (layer + 1) % PERIOD]
    if kinds is None and isinstance(local, list):
        return [layer in local for layer in range(layers)]
    known = isinstance(kinds, list) and all(kind in KINDS for kind in kinds)
    if not known or len(kinds) != layers:
        raise BadModel(
            f"config.json: layer_types must hold {' or '.join(KINDS)} for each of {layers} layers, "
            f"or local_layer_ids a list of layers, found {kinds or local!r}"
        )
    return [KINDS[kind] for kind in kinds]


def read_attention(fields: Fields, norm: NormSpec, has_window: bool) -> config.AttentionSpec:
    """The attention of a layer with a window, or without one."""
    prefix, scale = "swa_" if has_window else "", None
    window = fields.count("sliding_window_size") if has_window else 0
    if not has_window and fields.raw.get("log_scaling_n_floor") is not None:
        alpha = fields.number("log_scaling_alpha", 0.1)
        scale = config.LogScale(alpha, fields.count("log_scaling_n_floor"))
    extent, width = window or fields.count("rel_extent"), fields.count("conv_kernel_size")
    head_dim = fields.count(prefix + "head_dim")
    return config.AttentionSpec(
        heads=fields.count(prefix + "num_attention_heads"),
        kv_heads=fields.count(prefix + "num_key_value_heads"),
        head_dim=head_dim,
        scale=1 / head_dim,
        rope=None,
        window=window,
        qk_norm=config.QkNorm(norm),
        relative=config.RelativeSpec(fields.count("d_rel"), extent, width, scale),
    )


def _read_experts(fields: Fields, storage: ExpertStorage) -> config.MoeSpec:
    expert = config.read_gated(fields, "moe_intermediate_size")
    return config.MoeSpec(
        config.read_expert_count(fields, "n_routed_experts"),
        expert,
        config.read_routing(fields, score=Score.SIGMOID, scale=fields.positive("route_scale", 8.0)),
        config.RouterSpec(correction=True, float32=True),
        shared=expert,
        storage=storage,
        weighed_shared=fields.count("n_shared_experts"),
    )
