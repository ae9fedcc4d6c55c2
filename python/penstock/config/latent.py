"""Reads multi-head latent attention from config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.config.attention_spec import (
    AttentionSpec,
    Gate,
    IndexerSpec,
    LatentSpec,
    NormKind,
    NormSpec,
    RopeSpec,
)
from penstock.config.fields import Fields
from penstock.config.rope import read_rope, yarn_temperature
from penstock.config.specification import LayerSpec
from penstock.faults import BadModel, Unsupported

ROPES = ("default", "yarn", "longrope")
INDEXERS = {"full": False, "shared": True, "F": False, "S": True}


def read_latent_attention(fields: Fields) -> AttentionSpec:
    """Multi-head latent attention, as DeepSeek's config.json spells it."""
    attention = _read_attention(fields)
    fields.require("head_dim", attention.rope_dim)
    return attention


def read_head_gated_latent_attention(fields: Fields) -> AttentionSpec:
    """As `read_latent_attention`, with a gate of each head; `head_dim` is of other layers."""
    return replace(_read_attention(fields), gate=Gate.PER_HEAD)


def read_head_gated_indexed_attention(fields: Fields) -> AttentionSpec:
    """As `read_head_gated_latent_attention`, to the tokens that an indexer chooses (Dots3-Note).
    Neighbours rotate, in the indexer too."""
    indexer = _read_indexer(fields, 1e-6, interleaved=True)  # whatever rms_norm_eps is
    return _with_indexer(fields, read_head_gated_latent_attention(fields), indexer)


def read_latent_attention_without_rope(fields: Fields) -> AttentionSpec:
    """As `read_latent_attention`; what rotates elsewhere stays as it is."""
    fields.ignore("head_dim")  # files have either of two widths there
    return _read_attention(fields, rotates=False)


def _read_attention(
    fields: Fields, rotates: bool = True, interleaved: bool = True
) -> AttentionSpec:
    """All fields but `head_dim`. With YaRN, the square of the temperature of `mscale_all_dim` is
    part of the scores' scale. `interleaved`: whether neighbours rotate if no field says it."""
    fields.require_unset("attention_bias")
    heads = fields.count("num_attention_heads")
    fields.require("num_key_value_heads", heads)  # of the projections: all heads have their own
    rope = _read_rope(fields, interleaved) if rotates else None
    has_query_latent = fields.raw.get("q_lora_rank") is not None
    latent = LatentSpec(
        rank=fields.count("kv_lora_rank"),
        rotated=int(fields.number("qk_rope_head_dim")) and fields.count("qk_rope_head_dim"),
        still=fields.count("qk_nope_head_dim"),
        value=fields.count("v_head_dim"),
        norm=NormSpec(1e-6),  # whatever rms_norm_eps is
        query_rank=fields.count("q_lora_rank") if has_query_latent else 0,
    )
    fields.require("qk_head_dim", latent.still + latent.rotated)
    scale = (latent.still + latent.rotated) ** -0.5
    if rope is not None and (weight := rope.numbers.get("mscale_all_dim")):
        scale *= yarn_temperature(rope.numbers["factor"], weight) ** 2
    row = latent.rank + latent.rotated
    return AttentionSpec(heads, 1, row, scale, rope, latent=latent)


def _read_rope(fields: Fields, interleaved: bool) -> RopeSpec:
    rope = replace(read_rope(fields), interleaved=fields.flag("rope_interleave", interleaved))
    if rope.kind not in ROPES:
        raise Unsupported(
            f"config.json: rope_type {rope.kind!r} is not supported for latent attention, only "
            f"{', '.join(ROPES)} are"
        )
    return rope


def read_indexed_attention(fields: Fields, interleaved: bool) -> AttentionSpec:
    """Latent attention to the tokens that an indexer chooses. `interleaved`: whether the family's
    indexer rotates neighbours; attention always does."""
    fields.require("rope_interleave", True)
    fields.require("indexer_rope_interleave", interleaved)
    layers = fields.count("num_hidden_layers")
    kinds = fields.raw.get("layer_types")
    # As transformers called it before 5.23.
    former = kinds == ["deepseek_sparse_attention"] * layers
    fields.require("layer_types", kinds if former else ["indexed_attention"] * layers)
    fields.require("moe_router_dtype", "float32")
    indexer = _read_indexer(fields, 1e-6, interleaved)  # whatever rms_norm_eps is
    return _with_indexer(fields, _read_attention(fields), indexer)


def read_gated_indexed_attention(fields: Fields) -> AttentionSpec:
    """As `read_indexed_attention`, with a gate of the output and sinks (Hunyuan 4). Halves rotate,
    in the indexer those of each head's end."""
    fields.require("rope_interleave", False)
    fields.require("layer_types", ["indexed_attention"] * fields.count("num_hidden_layers"))
    fields.ignore("learnable_sink_init")  # files have the sinks themselves
    eps = fields.number("rms_norm_eps")
    attention = replace(_read_attention(fields, interleaved=False), gate=Gate.OWN, sinks=True)
    indexer = _read_indexer(fields, eps, interleaved=False)
    return _with_indexer(fields, attention, replace(indexer, at_end=True))


def read_pooled_indexed_attention(fields: Fields) -> AttentionSpec:
    """As `read_indexed_attention`, to pools of tokens, and without RoPE (GLM-5-next)."""
    fields.require("qk_rope_head_dim", 0)
    fields.require("index_kpool_always_select_tail", True)
    attention = _read_attention(fields, rotates=False)
    assert attention.latent is not None
    latent = replace(attention.latent, norm=NormSpec(fields.number("rms_norm_eps")))
    indexer = _read_indexer(fields, 1e-6, interleaved=False)  # whatever rms_norm_eps is
    pool = fields.count("index_kpool")
    if indexer.top_k % pool:
        raise BadModel(
            f"config.json: index_topk must be a multiple of index_kpool, {pool}, found "
            f"{indexer.top_k}"
        )
    attention = replace(attention, latent=latent)
    return _with_indexer(fields, attention, replace(indexer, pool=pool))


def _read_indexer(fields: Fields, eps: float, interleaved: bool) -> IndexerSpec:
    return IndexerSpec(
        heads=fields.count("index_n_heads"),
        head_dim=fields.count("index_head_dim"),
        top_k=fields.count("index_topk"),
        norm=NormSpec(eps, NormKind.LAYER, bias=True),
        interleaved=interleaved,
    )


def _with_indexer(fields: Fields, attention: AttentionSpec, indexer: IndexerSpec) -> AttentionSpec:
    fields.ignore("head_dim")  # files have any of three widths there
    latent = attention.latent
    assert latent is not None
    if not latent.query_rank:
        raise Unsupported("config.json: an indexer without q_lora_rank is not supported")
    if indexer.head_dim < latent.rotated:
        raise BadModel(
            f"config.json: index_head_dim is {indexer.head_dim}, less than qk_rope_head_dim, "
            f"{latent.rotated}"
        )
    row = attention.head_dim + indexer.row
    return replace(attention, head_dim=row, latent=replace(latent, indexer=indexer))


def read_shared_indexers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers take the choice of an earlier layer: `indexer_types` lists it, or else a pattern
    of letters, or else every `index_topk_freq`-th layer has an indexer, and some of the first."""
    fields.ignore("index_share_for_mtp_iteration")  # of layers that are not loaded
    listed, pattern = fields.raw.get("indexer_types"), fields.raw.get("index_topk_pattern")
    period = int(fields.number("index_topk_freq", 1))
    start = int(fields.number("index_skip_topk_offset", 2))
    kinds = pattern if listed is None else listed
    if kinds is None:
        ordinals = [max(i - start + 1, 0) for i in range(layers)]
        kinds = ["F" if ordinal % max(period, 1) == 0 else "S" for ordinal in ordinals]
    return shared_indexers(kinds, layers)


def shared_indexers(kinds: Any, layers: int) -> tuple[bool, ...]:
    """Which layers take the choice of an earlier layer, by each layer's kind. Raises BadModel for
    other kinds, or if the first layer has no indexer."""
    known = isinstance(kinds, list | str) and all(str(kind) in INDEXERS for kind in kinds)
    if not known or len(kinds) != layers or INDEXERS[kinds[0]]:
        raise BadModel(
            "config.json: indexer_types must have full or shared for each of "
            f"{layers} layers, and full for the first, found {kinds!r}"
        )
    return tuple(INDEXERS[kind] for kind in kinds)


def with_shared_indexers(layers: Sequence[LayerSpec], shared: Sequence[bool]) -> list[LayerSpec]:
    """Returns the layers, those that are `shared` without indexers of their own."""
    found = []
    for layer, takes in zip(layers, shared, strict=True):
        attention = layer.attention
        if not isinstance(attention, AttentionSpec):
            found.append(layer)
            continue
        assert attention.latent is not None
        indexer = attention.latent.indexer
        assert indexer is not None
        latent = replace(attention.latent, indexer=replace(indexer, shared=takes))
        found.append(replace(layer, attention=replace(attention, latent=latent)))
    return found
