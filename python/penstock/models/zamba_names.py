"""The names of the tensors of Zamba and Zamba2 in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.config import PlaceSpec, Specification

MAMBA = {
    "input_layernorm": "attention_norm",
    "mamba": "attention",
    "mamba.in_proj": "attention.inputs",
    "mamba.conv1d": "attention.convolution",
    "mamba.out_proj": "attention.output",
}
SHARED = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "qkv.q",
    "self_attn.k_proj": "qkv.k",
    "self_attn.v_proj": "qkv.v",
    "self_attn.o_proj": "out",
    "pre_ff_layernorm": "mlp_norm",
    "feed_forward.down_proj": "down",
}


@dataclass(frozen=True)
class Modules:
    """What a family calls the parts of its layers."""

    transformer: str
    mamba: Mapping[str, str]
    """Paths by module, of a layer of Mamba."""
    shared: Mapping[str, str]
    """Those of a shared transformer."""


def places_of(spec: Specification) -> dict[int, PlaceSpec]:
    """The places of shared transformers, by the blocks that they are in."""
    before = ((i, spec.layers[layer - 1]) for i, layer in enumerate(spec.block_layers) if layer)
    return {index: layer.place for index, layer in before if layer.place is not None}


def first_places(spec: Specification) -> dict[int, int]:
    """The first block with each of the transformers."""
    found: dict[int, int] = {}
    for index, place in places_of(spec).items():
        found.setdefault(place.weights, index)
    return found


def names_of(spec: Specification, modules: Modules) -> dict[str, str]:
    """Paths by module, of a model with these places."""
    found = {"model.embed_tokens": "embedding", "model.final_layernorm": "norm", "lm_head": "head"}
    places, firsts = places_of(spec), first_places(spec)
    for index in range(spec.blocks):
        own, path = f"model.layers.{index}", f"blocks.{index}"
        mamba = f"{own}.mamba_decoder" if index in places else own
        found |= {f"{mamba}.{name}": f"{path}.{below}" for name, below in modules.mamba.items()}
    for number, index in firsts.items():
        own, path = f"model.layers.{index}.{modules.transformer}", f"shared.{number}"
        found |= {f"{own}.{name}": f"{path}.{below}" for name, below in modules.shared.items()}
    for index, place in places.items():
        path = f"blocks.{index}.place"
        found[f"model.layers.{index}.linear"] = f"{path}.output.all"
        own = f"model.layers.{firsts[place.weights]}.{modules.transformer}"
        found |= {f"{own}.{name}": f"{path}.{below}" for name, below in _adapters(place)}
    return found


def _adapters(place: PlaceSpec) -> Iterator[tuple[str, str]]:
    """The modules of a place's adapters below the transformer, and their paths below the place."""
    if not place.rank:
        return
    gate_up = f"feed_forward.gate_up_proj_adapter_list.{place.number}"
    yield from ((f"{gate_up}.0", "gate_up.narrow.all"), (f"{gate_up}.1", "gate_up.widen"))
    for part in "qkv" if place.adapts_attention else "":
        own = f"self_attn.linear_{part}_adapter_list.{place.number}"
        yield from ((f"{own}.0", f"qkv.narrow.{part}"), (f"{own}.1", f"qkv.widen.{part}"))
