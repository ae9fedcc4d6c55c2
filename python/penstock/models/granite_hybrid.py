"""Granite 4.0: layers of Mamba-2, some with attention, and shared feed-forward layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from penstock.config import (
    FULL,
    LINEAR,
    Fields,
    MlpSpec,
    Specification,
    read_hybrid_types,
    read_mamba,
    with_head_dim,
)
from penstock.models.bamba import MAMBA_NAMES
from penstock.models.granite import Granite
from penstock.models.granite_moe import GraniteMoe
from penstock.weights import Names

IGNORED = "normalization_function", "init_method", "mamba_chunk_size", "num_experts_per_tok"
DEFAULTS = {"heads": 128, "groups": 1, "state": 256, "width": 4}


class GraniteHybrid(Granite):
    """Granite 4.0 with and without experts. Most of its attention has no position embedding."""

    names: ClassVar[Mapping[str, str]] = {
        **GraniteMoe.names,
        **MAMBA_NAMES,
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Replaces Granite's layers."""
        fields = with_head_dim(Fields(raw))
        moe = raw.get("num_local_experts", 8) != 0
        spec = (GraniteMoe if moe else Granite).read_config(raw)
        mamba = read_mamba(fields, spec.residual.norm, DEFAULTS)
        fields.ignore(*IGNORED)
        kinds = read_hybrid_types(fields, [LINEAR] * len(spec.layers), LINEAR)
        rope = raw.get("position_embedding_type") == "rope"
        if not rope:
            spec = spec.with_attention(spec.windows, rope=None)
        shared = MlpSpec(fields.count("shared_intermediate_size", 1024))
        layers = tuple(
            replace(
                layer,
                attention=layer.attention if kind == FULL else mamba,
                mlp=layer.mlp if moe else shared,
            )
            for layer, kind in zip(spec.layers, kinds, strict=True)
        )
        return replace(spec, layers=layers)

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """The shared feed-forward layer is the only one where there are no experts."""
        if spec.has_experts:
            return Names(cls.names)
        return Names({name: path.replace(".shared.", ".") for name, path in cls.names.items()})
