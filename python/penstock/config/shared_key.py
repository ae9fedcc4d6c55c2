"""Reads attention whose keys are its values, with compressed entries, from config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.config.attention_spec import (
    AttentionSpec,
    CompressionSpec,
    IndexerSpec,
    NormSpec,
    RopeSpec,
    SharedKeySpec,
)
from penstock.config.fields import Fields, layered
from penstock.config.layer_types import SLIDING
from penstock.config.rope import FRACTION, read_rope
from penstock.faults import BadModel, Unsupported

SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATES = {SPARSE: 4, HEAVY: 128}
OLDER_RATES = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
MAIN, COMPRESS = "main", "compress"
ROPES = ("default", "yarn")


def read_shared_key_layers(fields: Fields) -> list[AttentionSpec]:
    """Attention of each layer, as DeepSeek-V4 spells it: to the last tokens alone, to chosen
    entries of few tokens, or to all entries of many."""
    kinds, rates = _read_kinds(fields), _read_rates(fields)
    plain = _read_plain(fields)
    key = plain.shared_key
    assert key is not None
    ropes = _read_ropes(fields, key)
    indexer = _read_indexer(fields, key)
    found, caches = [], len(kinds)
    for kind in kinds:
        if kind == SLIDING:
            found.append(replace(plain, rope=ropes[MAIN]))
            continue
        sparse = kind == SPARSE
        entries = CompressionSpec(rates[kind], sparse, indexer if sparse else None, caches)
        caches += 1
        found.append(_compressed(replace(plain, rope=ropes[COMPRESS]), entries))
    return found


def _compressed(plain: AttentionSpec, entries: CompressionSpec) -> AttentionSpec:
    """Attention to entries too. The cache keeps the tokens that the next entry sums up."""
    assert plain.shared_key is not None
    key = replace(plain.shared_key, compression=entries)
    window = max(plain.window, entries.reach)
    return replace(plain, head_dim=key.row, window=window, shared_key=key)


def _read_plain(fields: Fields) -> AttentionSpec:
    """Attention to the last tokens, without RoPE."""
    fields.require_unset("attention_bias")
    fields.require("num_key_value_heads", 1)
    heads, size = fields.count("num_attention_heads"), fields.count("head_dim", 512)
    groups = fields.count("o_groups", 8)
    if heads % groups:
        raise BadModel(
            f"config.json: num_attention_heads is {heads}, not a multiple of o_groups, {groups}"
        )
    key = SharedKeySpec(
        size=size,
        rotated=_read_rotated(fields, size),
        window=fields.count("sliding_window", 128),
        query_rank=fields.count("q_lora_rank", 1024),
        groups=groups,
        group_rank=fields.count("o_lora_rank", 1024),
        norm=NormSpec(fields.number("rms_norm_eps", 1e-6)),
    )
    return AttentionSpec(
        heads, 1, size, size**-0.5, None, window=key.window, sinks=True, shared_key=key
    )


def _read_rotated(fields: Fields, size: int) -> int:
    """Dimensions of a head that rotate. Files have their share, their number, or both."""
    given = fields.raw.get("qk_rope_head_dim")
    share = fields.positive(FRACTION, 64 / 512 if given is None else given / size)
    rotated = RopeSpec("default", 1e4, fraction=share).dims(size)
    fields.require("qk_rope_head_dim", rotated)
    return rotated


def _read_kinds(fields: Fields) -> Sequence[str]:
    """What each layer attends to. Files may list rates instead, also of layers that predict further
    tokens; without a list, every second layer attends to chosen entries."""
    count = fields.count("num_hidden_layers")
    kinds, ratios = fields.raw.get("layer_types"), fields.raw.get("compress_ratios")
    by_ratio = {0: SLIDING, **{rate: kind for kind, rate in RATES.items()}}
    if kinds is None and isinstance(ratios, list):
        kinds = [by_ratio.get(ratio) for ratio in ratios[:count]]
    if kinds is None:
        kinds = [SPARSE if i > 2 and i % 2 else HEAVY for i in range(count)]
    known = isinstance(kinds, list) and all(kind in (SLIDING, *RATES) for kind in kinds)
    if not known or len(kinds) != count:
        raise BadModel(
            f"config.json: layer_types must have {SLIDING}, {SPARSE} or {HEAVY} for each of "
            f"{count} layers, found {kinds!r}"
        )
    return kinds


def _read_rates(fields: Fields) -> Mapping[str, int]:
    """Tokens of an entry by kind of layer. Raises Unsupported for one that blocks cannot hold."""
    section = fields.raw.get("compress_rates")
    given = Fields({}) if section is None else fields.section("compress_rates")
    found = {
        kind: fields.count(OLDER_RATES[kind], given.count(kind, rate))
        for kind, rate in RATES.items()
    }
    for kind, rate in found.items():
        if rate & (rate - 1):
            raise Unsupported(
                f"config.json: compress_rates.{kind} {rate} is not supported, only powers of two"
            )
    return found


def _read_indexer(fields: Fields, key: SharedKeySpec) -> IndexerSpec:
    size = fields.count("index_head_dim", 128)
    if size < key.rotated:
        raise BadModel(
            f"config.json: index_head_dim is {size}, less than the {key.rotated} dimensions that "
            "rotate"
        )
    heads, top_k = fields.count("index_n_heads", 64), fields.count("index_topk", 512)
    return IndexerSpec(heads, size, top_k, key.norm, interleaved=True, at_end=True)


def _read_ropes(fields: Fields, key: SharedKeySpec) -> dict[str, RopeSpec]:
    """RoPE of layers with and without entries: files have an object for each, or one for those
    with entries, whose YaRN then has no temperature."""
    raw = fields.raw.get("rope_parameters") or fields.raw.get("rope_scaling") or {}
    theta = fields.positive("rope_theta", 10000.0)
    slow = fields.positive("compress_rope_theta", 160000.0)
    if not isinstance(raw, Mapping):
        raise BadModel(f"config.json: rope_parameters must be an object, found {raw!r}")
    if MAIN not in raw:
        scaled = {"attention_factor": 1.0, **raw, "rope_theta": slow}
        raw = {MAIN: {"rope_theta": theta}, COMPRESS: scaled}
    return {name: _read_one_rope(fields, raw.get(name), key) for name in (MAIN, COMPRESS)}


def _read_one_rope(fields: Fields, raw: Any, key: SharedKeySpec) -> RopeSpec:
    if not isinstance(raw, Mapping):
        raise BadModel(f"config.json: rope_parameters must have {MAIN} and {COMPRESS}")
    Fields(raw).require(FRACTION, key.rotated / key.size)
    whole = {FRACTION: 1.0}  # of the dimensions that rotate
    parameters = {"rope_parameters": {**raw, **whole}, "rope_scaling": None}
    rope = read_rope(Fields(layered(parameters, whole, fields.raw)))
    if rope.kind not in ROPES:
        raise Unsupported(
            f"config.json: rope_type {rope.kind!r} is not supported, only {', '.join(ROPES)} are"
        )
    return replace(rope, interleaved=True)
