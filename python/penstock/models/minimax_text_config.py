"""Reads the layers of MiniMax-Text-01 from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock import config
from penstock.config import FULL, LINEAR, AttentionSpec, Fields, LayerSpec, SumFactors, layered
from penstock.faults import BadModel, Unsupported

# transformers' names of factors, by the names in published files.
FACTORS = {
    f"layernorm_{name}_{letter}": f"{ours}_{letter}_factor"
    for name, ours in (
        ("full_attention", "full_attn"),
        ("linear_attention", "linear_attn"),
        ("mlp", "mlp"),
    )
    for letter in ("alpha", "beta")
}
KINDS = {0: LINEAR, 1: FULL}


def with_library_names(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a published file, under the names that transformers gives them."""
    if raw.get("postnorm") is not True:
        raise Unsupported("config.json: postnorm must be true, other sums are not supported")
    kinds = raw.get("attn_type_list")
    if not isinstance(kinds, list) or not all(kind in (0, 1) for kind in kinds):
        raise BadModel(
            f"config.json: attn_type_list must hold 0 or 1 for each layer, found {kinds!r}"
        )
    given = {new: raw[old] for old, new in FACTORS.items() if raw.get(old) is not None}
    return layered(given, {"layer_types": [KINDS[kind] for kind in kinds]}, raw)


def read_layers(fields: Fields, slopes: config.Slopes) -> list[LayerSpec]:
    """All layers; where config.json does not list their kinds, every second one has lightning
    attention."""
    count = fields.count("num_hidden_layers")
    default = [LINEAR if layer % 2 else FULL for layer in range(count)]
    kinds = config.read_hybrid_types(fields, default, LINEAR)
    expert = config.read_gated(fields, "intermediate_size")
    routing = config.read_routing(fields, renormalise=True)
    moe = config.MoeSpec(config.read_expert_count(fields, "num_local_experts"), expert, routing)
    full, mlp_sum = _read_full(fields), _read_sum(fields, "mlp")
    sums = {FULL: _read_sum(fields, "full_attn"), LINEAR: _read_sum(fields, "linear_attn")}
    mixers = [
        full if kind == FULL else config.read_lightning(fields, slopes, layer)
        for layer, kind in enumerate(kinds)
    ]
    return [
        LayerSpec(mixer, moe, attention_sum=sums[kind], mlp_sum=mlp_sum)
        for mixer, kind in zip(mixers, kinds, strict=True)
    ]


def _read_full(fields: Fields) -> AttentionSpec:
    """Attention. With `rotary_dim`, a part of each head rotates, as in the published code;
    transformers has no such field."""
    window = 0 if fields.raw.get("sliding_window") is None else fields.count("sliding_window")
    partial = fields.raw.get("rotary_dim") is not None
    rope = config.read_rope(config.with_rotary_dim(fields), theta=1e6, partial=partial)
    return config.read_attention(fields, rope, window=window)


def _read_sum(fields: Fields, name: str) -> SumFactors:
    """The factors alpha and beta whose names begin with `name`."""
    read, output = (fields.positive(f"{name}_{letter}_factor", 1) for letter in ("alpha", "beta"))
    return SumFactors(read, output)
