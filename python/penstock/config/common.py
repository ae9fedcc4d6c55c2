"""Reads the fields of config.json that most families have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.config.fields import Fields
from penstock.config.specification import (
    Activation,
    AttentionSpec,
    LayerSpec,
    NormSpec,
    ResidualSpec,
    RopeSpec,
    Specification,
)
from penstock.faults import BadModel

# transformers' names of activations.
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu2": Activation.RELU_SQUARED,
}


def read_decoder(
    fields: Fields,
    layers: Iterable[LayerSpec],
    residual: ResidualSpec | None = None,
    **changes: Any,
) -> Specification:
    """The specification with these layers; `changes` are fields that the family reads itself."""
    read = {
        "vocab": fields.count("vocab_size"),
        "max_positions": fields.count("max_position_embeddings"),
        "tied": fields.flag("tie_word_embeddings"),
    }
    residual = residual or read_residual(fields)
    return Specification(residual, layers=tuple(layers), **{**read, **changes})


def read_residual(fields: Fields, **changes: Any) -> ResidualSpec:
    """The residual stream; `changes` are fields that the family reads itself."""
    norm = NormSpec(fields.number("rms_norm_eps", 1e-6))
    return ResidualSpec(fields.count("hidden_size"), **{"norm": norm, **changes})


def read_attention(fields: Fields, rope: RopeSpec | None, **changes: Any) -> AttentionSpec:
    """Grouped-query attention; `changes` are fields that the family reads itself."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", max(hidden // heads, 1))
    read = {
        "heads": heads,
        "kv_heads": fields.count("num_key_value_heads", heads),
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
    }
    return AttentionSpec(rope=rope, **{**read, **changes})


def read_activation(fields: Fields, name: str, default: str) -> Activation:
    """The activation under `name`, by transformers' name for it."""
    value = fields.raw.get(name) or default
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise BadModel(
            f"config.json: {name} {value!r} is not supported, only {sorted(_ACTIVATIONS)} are"
        )
    return _ACTIVATIONS[value]
