"""Granite with sliding windows, sinks, and a base of RoPE for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import FULL, SLIDING, Fields, Specification, layered, read_layer_types
from penstock.models.decoder import LLAMA_NAMES
from penstock.models.granite import Granite
from penstock.models.granite_moe import GraniteMoe

LAYER, THETAS = "model.layers.{}.", "layer_rope_theta"
SINKS = {LAYER + "self_attn": "blocks.{}.attention"}
WINDOW = {"sliding_window": 128}
DEFAULTS = {**WINDOW, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


class GraniteSwa(Granite):
    """Granite Swash 2B."""

    names: ClassVar[Mapping[str, str]] = LLAMA_NAMES | SINKS

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Changes the attention of each layer."""
        fields = Fields(layered(raw, DEFAULTS))
        return _with_windows(fields, super().read_config(fields.raw))


class GraniteMoeSwa(GraniteMoe):
    """Granite Swash 3B-A600M."""

    names: ClassVar[Mapping[str, str]] = {
        **{name: path for name, path in GraniteMoe.names.items() if "block_" not in name},
        **SINKS,
        LAYER + "block_sparse_moe.router": "blocks.{}.mlp.router",
        LAYER + "block_sparse_moe.experts.gate_up_proj": "blocks.{}.mlp.experts.gate_up.weight",
        LAYER + "block_sparse_moe.experts.down_proj": "blocks.{}.mlp.experts.down.weight",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Changes the attention of each layer."""
        fields = Fields(layered(raw, WINDOW))
        return _with_windows(fields, super().read_config(fields.raw))


def _with_windows(fields: Fields, spec: Specification) -> Specification:
    count = len(spec.layers)
    kinds = read_layer_types(fields, [SLIDING if layer % 4 else FULL for layer in range(count)])
    window = fields.count("sliding_window") if SLIDING in kinds else 0
    spec = spec.with_attention((window * (kind == SLIDING) for kind in kinds), sinks=True)
    if fields.raw.get(THETAS) is None:
        return spec
    each = fields.each(THETAS, count)
    found = [one.positive(THETAS) if one.raw[THETAS] != 0 else 0.0 for one in each]
    return spec.with_each_attention(
        {"rope": attention.rope and replace(attention.rope, theta=theta) if theta else None}
        for attention, theta in zip(spec.softmax_layers, found, strict=True)
    )
