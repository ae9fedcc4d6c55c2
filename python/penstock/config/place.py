"""Transformers whose weights several places of a model share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from penstock.config.fields import Fields
from penstock.config.layer_types import LINEAR, OLDER
from penstock.faults import BadModel

HYBRID = "hybrid"  # a recurrent layer with a place of a shared transformer before it


@dataclass(frozen=True)
class PlaceSpec:
    """A place of a shared transformer (Zamba, arXiv:2405.16712; Zamba2, arXiv:2411.15242), which
    reads the embedding beside the hidden state. What it yields is added to what the norm of the
    layer behind it reads, not to the residual stream."""

    weights: int = field(compare=False)
    """Which of the transformers."""
    number: int = field(compare=False)
    """Which of the places, those of all transformers counted."""
    rank: int
    """Elements between the two matrices of the adapters, which each place has of its own; 0 = there
    are none."""
    adapts_attention: bool
    """Whether queries, keys and values have adapters; gate and up have them wherever there are
    any."""


def read_place_kinds(fields: Fields, places: Collection[int]) -> Sequence[str]:
    """LINEAR or HYBRID for each layer; `places` are the HYBRID ones where config.json has no list.
    Raises BadModel."""
    count, raw = fields.count("num_hidden_layers"), fields.raw
    default = [HYBRID if layer in places else LINEAR for layer in range(count)]
    given = raw.get("layers_block_type") or raw.get("layer_types") or default
    kinds = [OLDER.get(str(kind), kind) for kind in given] if isinstance(given, list) else []
    known = len(kinds) == count and all(kind in (HYBRID, LINEAR) for kind in kinds)
    if not known or HYBRID not in kinds:
        raise BadModel(
            f"config.json: layers_block_type must hold {HYBRID}, at least once, or {LINEAR} for "
            f"each of {count} layers, found {given!r}"
        )
    fields.require("hybrid_layer_ids", [i for i, kind in enumerate(kinds) if kind == HYBRID])
    return kinds
