"""Reads models whose layers are each an attention, a recurrent or a feed-forward layer alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.config.attention_spec import AttentionSpec
from penstock.config.common import read_mlp
from penstock.config.experts import read_ungated_moe
from penstock.config.feed_forward import MlpSpec, MoeSpec
from penstock.config.fields import Fields
from penstock.config.layer_types import FULL, LINEAR, OLDER
from penstock.config.recurrent_spec import RecurrentSpec
from penstock.config.specification import LayerSpec
from penstock.faults import BadModel, Unsupported

MLP, EXPERTS = "mlp", "moe"
_LETTERS = {"M": LINEAR, "*": FULL, "-": MLP, "E": EXPERTS}


def read_pattern_layers(
    fields: Fields, mixers: Mapping[str, AttentionSpec | RecurrentSpec], activation: str
) -> list[LayerSpec]:
    """The layers, of `mixers` by kind and feed-forward layers without gates, dense and with
    experts; each of these is a part of the layer before it. `activation` names a field."""
    kinds = _read_kinds(fields)
    mlps: dict[str, MlpSpec | MoeSpec] = {}
    if MLP in kinds:
        bias = fields.flag("mlp_bias")
        mlps[MLP] = read_mlp(fields, activation, "relu2", bias=bias, gated=False)
    if EXPERTS in kinds:
        mlps[EXPERTS] = read_ungated_moe(fields, activation)
    return _pair(kinds, mixers, mlps)


def _read_kinds(fields: Fields) -> Sequence[str]:
    """The kind of each layer: `layers_block_type`, or a letter of `hybrid_override_pattern`."""
    found = fields.raw.get("layers_block_type") or fields.raw.get("layer_types")
    pattern = fields.raw.get("hybrid_override_pattern")
    kinds = found or [_LETTERS.get(letter, letter) for letter in pattern or ""]
    kinds = [OLDER.get(kind, kind) for kind in kinds]
    unknown = [kind for kind in kinds if kind not in _LETTERS.values()]
    if unknown or FULL not in kinds:
        raise BadModel(
            f"config.json: layers_block_type must hold {', '.join(_LETTERS.values())}, and "
            f"{FULL} at least once, found {kinds!r}"
        )
    return kinds


def _pair(
    kinds: Sequence[str],
    mixers: Mapping[str, AttentionSpec | RecurrentSpec],
    mlps: Mapping[str, MlpSpec | MoeSpec],
) -> list[LayerSpec]:
    """Raises Unsupported for a feed-forward layer that does not follow another layer."""
    layers: list[LayerSpec] = []
    for kind in kinds:
        if kind in mixers:
            layers.append(LayerSpec(mixers[kind], None))
        elif not layers or layers[-1].mlp is not None:
            raise Unsupported(
                "config.json: layers_block_type has a feed-forward layer that does not follow "
                "attention or Mamba, which is not supported"
            )
        else:
            layers[-1] = LayerSpec(layers[-1].attention, mlps[kind])
    return layers
