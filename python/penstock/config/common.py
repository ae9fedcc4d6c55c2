"""Reads the fields of config.json that most families have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.config.attention_spec import AttentionSpec, NormKind, NormSpec, RopeSpec
from penstock.config.feed_forward import Activation, MlpSpec
from penstock.config.fields import Fields, Renamed, layered
from penstock.config.rope import yarn_positions
from penstock.config.specification import (
    LayerSpec,
    PerLayerSpec,
    ResidualSpec,
    Specification,
)
from penstock.faults import Unsupported

# transformers' names of activations.
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
}

# Fields of RoPE in three axes, which text alone does not need: its positions are equal in all.
AXES = ("mrope_section", "mrope_interleaved")

DUAL_CHUNK = "dual_chunk_attention_config"
# How other servers leave out keys of long sequences; here none are.
_SPARSE = [f"sparse_attention_{name}" for name in ("enabled", "config", "threshold", "last_q")]

_GPT_NAMES = {
    "n_embd": "hidden_size",
    "n_embed": "hidden_size",
    "d_model": "hidden_size",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "seq_length": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "n_inner": "intermediate_size",
}


def read_decoder(
    fields: Fields,
    layers: Iterable[LayerSpec],
    residual: ResidualSpec | None = None,
    **changes: Any,
) -> Specification:
    """The specification with these layers; `changes` are fields that the family reads itself."""
    layers = tuple(layers)
    read = {
        "vocab": fields.count("vocab_size"),
        "tied": fields.flag("tie_word_embeddings"),
        **_length(fields, layers),
    }
    residual = residual or read_residual(fields)
    return Specification(residual, layers=layers, **{**read, **changes})


def _length(fields: Fields, layers: Iterable[LayerSpec]) -> dict[str, Any]:
    """The longest sequence, and what limits it. Dual chunk attention (arXiv:2402.17463) shortens
    distances of keys in other chunks; up to the size of a chunk it is plain attention."""
    found = (layer.attention for layer in layers)
    ropes = [each.rope for each in found if isinstance(each, AttentionSpec)]
    longest = max([fields.count("max_position_embeddings"), *map(yarn_positions, ropes)])
    if not fields.raw.get(DUAL_CHUNK):
        return {"max_positions": longest}
    chunks = fields.section(DUAL_CHUNK)
    size = chunks.count("chunk_size")
    chunks.require_at_most("local_size", size // 2)
    original = chunks.count("original_max_position_embeddings", longest)
    chunks.ignore(*_SPARSE)
    limit = f"a chunk of {DUAL_CHUNK}, beyond which it is not supported"
    return {"max_positions": min(longest, size, original), "length_limit": limit}


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


def read_layer_norm(fields: Fields, name: str, bias: bool = True) -> NormSpec:
    """LayerNorm, whose eps is under `name`."""
    return NormSpec(fields.number(name, 1e-5), NormKind.LAYER, bias)


def read_mlp(fields: Fields, name: str, default: str, **changes: Any) -> MlpSpec:
    """A feed-forward layer, whose activation is under `name`; `changes` are fields that the family
    reads itself."""
    return MlpSpec(
        fields.count("intermediate_size"), read_activation(fields, name, default), **changes
    )


def read_per_layer(
    fields: Fields, name: str, default: str, short: bool = False
) -> PerLayerSpec | None:
    """Embeddings per layer, unless their size is 0; the gate's activation is under `name`.
    `short`: whether the vocabulary may have ids without a row."""
    fields.ignore("vocab_size_per_layer_input")
    if not fields.number("hidden_size_per_layer_input"):
        return None
    vocab = fields.count("vocab_size_per_layer_input")
    if not short and vocab < fields.count("vocab_size"):
        raise Unsupported(
            f"config.json: vocab_size_per_layer_input {vocab} below vocab_size is not supported"
        )
    size = fields.count("hidden_size_per_layer_input")
    return PerLayerSpec(size, vocab, read_activation(fields, name, default))


def read_gpt_names(raw: Mapping[str, Any]) -> Fields:
    """The fields of a GPT family, under the names that the others use; tied by default."""
    found = Renamed(raw, _GPT_NAMES)
    fields = Fields(layered(found, raw))
    fields.ignore("n_ctx")  # n_positions again
    inner = {"intermediate_size": 4 * fields.count("hidden_size")}
    return Fields(layered(found, inner, raw, {"tie_word_embeddings": True}))


def read_text_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's fields of a model that takes images too. Whether the head is tied, the whole
    model's fields say, if they say anything."""
    fields = Fields(raw)
    fields.ignore(*raw)  # the rest describes images
    text, name = fields.section("text_config"), "tie_word_embeddings"
    text.ignore(name)
    return text.raw if raw.get(name) is None else layered({name: raw[name]}, text.raw)


def read_text_with_axes(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """As `read_text_config`, of a model whose RoPE has three axes: positions of text are equal in
    all, so one is left. Older files have no `text_config`, but its fields beside the others."""
    if raw.get("text_config") is None:
        Fields(raw).ignore("vision_config")
        text = raw
    else:
        text = read_text_config(raw)
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(found := text.get(name), Mapping):
            plain = {field: value for field, value in found.items() if field not in AXES}
            types = {kind for kind in ("type", "rope_type") if plain.get(kind) == "mrope"}
            text = layered({name: {**plain, **dict.fromkeys(types, "default")}}, text)
    return text


def read_activation(fields: Fields, name: str, default: str) -> Activation:
    """The activation under `name`, by transformers' name for it."""
    value = fields.raw.get(name) or default
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise Unsupported(
            f"config.json: {name} {value!r} is not supported, only {sorted(_ACTIVATIONS)} are"
        )
    return _ACTIVATIONS[value]
