"""Published fields of Step 3.5, by the names and in the shape that transformers gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config import FULL, Fields, Renamed, layered, read_layer_types
from penstock.faults import BadModel, Unsupported

NAMES = {
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "num_attention_groups": "num_key_value_heads",
    "num_mtp_layers": "num_nextn_predict_layers",
    "share_expert_dims": "share_expert_dim",
}
PARTS = "partial_rotary_factors"
LIMITS = ("swiglu_limits", "swiglu_limits_shared")
LISTS = ("layer_types", "mlp_layer_types", PARTS, "rope_theta", *LIMITS)


def in_newer_fields(raw: Mapping[str, Any], *defaults: Mapping[str, Any]) -> Fields:
    """The fields, with transformers' defaults. Raises BadModel."""
    named = Renamed(raw, NAMES)
    for old, new in NAMES.items():
        Fields(raw).require(old, layered(raw, named).get(new))
    length = {"max_position_embeddings": raw["max_seq_len"]} if raw.get("max_seq_len") else {}
    fields = Fields(layered(raw, named, length, *defaults))
    count = fields.count("num_hidden_layers")
    # Lists may go on for the layers that predict further tokens, which are not loaded.
    every = count + int(fields.number("num_nextn_predict_layers", 0))
    lists = {name: raw[name] for name in LISTS if isinstance(raw.get(name), list)}
    cut = {name: found[:count] for name, found in lists.items() if len(found) == every}
    fields = Fields(layered(cut, fields.raw))
    kinds = read_layer_types(fields, [FULL] * count)
    made: dict[str, Any] = {}
    if not fields.raw.get("rope_parameters"):
        ropes = _ropes(fields, kinds)
        made = {"rope_parameters": ropes, "rope_theta": None, "rope_scaling": None}
    if fields.raw.get("mlp_layer_types") is None:
        made["mlp_layer_types"] = _mlps(fields, count)
    return Fields(layered(made, fields.raw))


def _ropes(fields: Fields, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """RoPE of each kind of layer, whose layers must agree."""
    fields.require("yarn_only_types", [FULL])
    found: dict[str, dict[str, Any]] = {}
    thetas, parts = (fields.each(name, len(kinds)) for name in ("rope_theta", PARTS))
    for kind, theta, part in zip(kinds, thetas, parts, strict=True):
        rope = {
            "rope_theta": theta.positive("rope_theta", 1e4),
            "partial_rotary_factor": part.positive(PARTS, 1.0),
        }
        if found.setdefault(kind, rope) != rope:
            raise Unsupported(
                f"config.json: rope_theta or {PARTS} that differ in layers of {kind} are not "
                "supported"
            )
    if FULL in found and fields.raw.get("rope_scaling"):
        found[FULL] |= fields.section("rope_scaling").raw
    return found


def _mlps(fields: Fields, layers: int) -> list[str]:
    """All layers but three have experts where `moe_layers_enum` lists none."""
    listed = fields.raw.get("moe_layers_enum")
    if listed is None:
        listed = range(3, layers)
    elif isinstance(listed, str):
        listed = filter(str.strip, listed.split(","))
    try:
        sparse = set(map(int, listed))
    except (TypeError, ValueError) as error:
        raise BadModel(f"config.json: moe_layers_enum must list layers: {error}") from error
    return ["sparse" if layer in sparse else "dense" for layer in range(layers)]
