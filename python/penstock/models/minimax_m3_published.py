"""Published fields of MiniMax-M3, by the names and in the shape that transformers gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import FULL, Fields, ReadFields
from penstock.faults import BadModel, Unsupported

# Of the object that published files describe sparse attention in.
PUBLISHED = "sparse_attention_config"
SIZES = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim"}
SIZES |= {"index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks"}
SIZES |= {"index_local_blocks": "sparse_local_block"}
SPARSE = "minimax_m3_sparse"


def in_flat_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that transformers makes of published ones. Raises BadModel."""
    fields = Fields(raw)
    found = _sparse_attention(fields) if raw.get(PUBLISHED) else {}
    if raw.get("layer_types") is not None:
        found.pop("layer_types", None)
    experts = _flags(fields, "moe_layer_freq")
    if experts is not None and raw.get("mlp_layer_types") is None:
        found["mlp_layer_types"] = ["sparse" if one else "dense" for one in experts]
    return found


def _sparse_attention(fields: Fields) -> dict[str, Any]:
    read = ReadFields(fields.section(PUBLISHED).raw, f"{PUBLISHED}.")
    given = Fields(read)
    given.require("use_sparse_attention", True)
    given.require("sparse_score_type", "max")
    given.require("sparse_init_block", 0)
    found: dict[str, Any] = {name: read[old] for name, old in SIZES.items() if old in read}
    chosen = _flags(given, "sparse_attention_freq")
    without = _flags(given, "sparse_disable_index_value")
    if any(one and not off for one, off in zip(chosen or [], without or [], strict=False)):
        raise Unsupported(f"config.json: index values of {PUBLISHED} are not supported")
    if chosen is not None:
        found["layer_types"] = [SPARSE if one else FULL for one in chosen]
    read.refuse_unread()
    return found


def _flags(fields: Fields, name: str) -> list[int] | None:
    """A list of 0 and 1. Raises BadModel."""
    found = fields.raw.get(name)
    if found is not None and not (isinstance(found, list) and all(one in (0, 1) for one in found)):
        raise BadModel(f"config.json: {name} must be a list of 0 and 1, found {found!r}")
    return found
