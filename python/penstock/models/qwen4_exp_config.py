"""Reads the layers of Qwen4-Exp from config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.config import (
    FULL,
    AttentionSpec,
    DeltaNetSpec,
    Fields,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    ProjectionOrder,
    layered,
    read_block_indexer,
    read_hybrid_attention,
    read_ngrams,
    with_block_indexer,
)
from penstock.faults import Unsupported

SIZES = {"head_dim": 256, "num_key_value_heads": 2, "max_position_embeddings": 32768}
SIZES |= {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
SIZES |= {"num_experts": 512, "num_experts_per_tok": 10}
ROPE = {"partial_rotary_factor": 1.0}
GATES = {"silu": False, "sigmoid": True}
INDEXED = "indexed_attention"  # published files say full_attention


def read_mixers(fields: Fields, norm: NormSpec) -> list[AttentionSpec | DeltaNetSpec]:
    """The attention of each layer, as of Qwen3.5, to chosen blocks. Raises BadModel."""
    name = fields.raw.get("output_gate_type") or "silu"
    if name not in GATES:
        raise Unsupported(
            f"config.json: output_gate_type {name!r} is not supported, only {sorted(GATES)} are"
        )
    kinds: Any = fields.raw.get("layer_types")
    if isinstance(kinds, list):
        kinds = [FULL if kind == INDEXED else kind for kind in kinds]
    plain = Fields(layered({"layer_types": kinds}, fields.raw))
    indexer = read_block_indexer(fields, norm)
    return [
        replace(mixer, sigmoid_gate=GATES[name])
        if isinstance(mixer, DeltaNetSpec)
        else with_block_indexer(mixer, indexer)
        for mixer in read_hybrid_attention(plain, ProjectionOrder.BY_KIND)
    ]


def read_layers(
    fields: Fields, norm: NormSpec, streams: int, mlps: Sequence[MlpSpec | MoeSpec]
) -> list[LayerSpec]:
    """The layers of the specification: n-grams are one of their own. Raises BadModel."""
    mixers = read_mixers(fields, norm)
    recurrent = [isinstance(mixer, DeltaNetSpec) for mixer in mixers]
    ngrams = read_ngrams(fields, norm, streams, recurrent)
    layers = []
    for number, (mixer, mlp) in enumerate(zip(mixers, mlps, strict=True)):
        if number in ngrams:
            layers.append(LayerSpec(ngrams[number], None))
        layers.append(LayerSpec(mixer, mlp))
    return layers
