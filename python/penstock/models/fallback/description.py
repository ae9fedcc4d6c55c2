"""The description of a model that transformers runs: read from config.json, then probed."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.config import AttentionSpec, SharedKeySpec
from penstock.faults import BadModel
from penstock.models import FAMILIES, native
from penstock.models.fallback.limitations import CHANGING_ROPE
from penstock.models.fallback.probe import OWN_ATTENTION, Call, probe, reason
from penstock.models.fallback.sharing import Sharing

INSTALL = "pip install 'penstock[transformers]'"
# Kinds of layers whose state is keys and values; masks tell what they see.
KINDS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
QUANTIZATION = ("quantization_config", "compression_config")


@dataclass(frozen=True)
class ModuleLayer:
    """One layer."""

    module: str
    """The attention module's path in the model."""
    attention: AttentionSpec


@dataclass(frozen=True)
class Description:
    """What the worker needs to know of the model, as `Specification` has it for native families."""

    model_class: Any
    """transformers' class."""
    config: Any
    """transformers' configuration."""
    body: str
    """The path of the module that makes hidden states from ids."""
    vocab: int
    max_positions: int
    layers: tuple[ModuleLayer, ...]
    quantized: bool
    """Whether the checkpoint's weights are."""
    sharing: Sharing
    limitations: tuple[str, ...]
    """What is given up because transformers computes the model, in phrases for its user."""

    @property
    def length_limit(self) -> str:
        """What limits `max_positions`, for errors."""
        return "max_position_embeddings"

    @property
    def windows(self) -> tuple[int, ...]:
        """Each layer's sliding window in tokens; 0 = unlimited."""
        return tuple(layer.attention.window for layer in self.layers)

    @property
    def softmax_layers(self) -> list[AttentionSpec]:
        """The attention of all layers."""
        return [layer.attention for layer in self.layers]

    @property
    def extends(self) -> bool:
        """False: RoPE whose base grows is refused."""
        return False

    @property
    def has_states(self) -> bool:
        """False: the library's recurrent layers are refused."""
        return False

    @property
    def kv_readers(self) -> dict[int, int]:
        """None: every layer has keys and values of its own."""
        return {}

    @property
    def compressed_layers(self) -> list[SharedKeySpec]:
        """None: the library's module gives attention whole keys and values."""
        return []

    @property
    def has_experts(self) -> bool:
        """False: ranks do not share experts."""
        return False

    @property
    def has_latents(self) -> bool:
        """False: the library's module gives attention whole keys and values."""
        return False

    def shared_sizes(self, expert_parallel: bool = False) -> list[tuple[str, int]]:
        """Returns the sizes that ranks must be able to share equally."""
        heads = {layer.heads: "num_attention_heads" for layer in self.softmax_layers}
        divided = (layer for layer in self.layers if layer.module not in self.sharing.whole)
        heads |= {layer.attention.kv_heads: "num_key_value_heads" for layer in divided}
        return [*((name, size) for size, name in heads.items()), *self.sharing.sizes]

    def within(self, tokens: int) -> Description:
        """Returns a copy for sequences of at most `tokens` tokens: a window that none of them
        outgrows is none."""
        return replace(self, layers=tuple(_within(self.layers, tokens)))


def describe(raw: Mapping[str, Any]) -> Description:
    """Reads config.json and probes the model. Raises BadModel with the reason why transformers
    cannot run it here."""
    try:
        config, cls = _library(raw)
        _check(config)
        positions = _positions(config)
        found, sharing = probe(cls, config, positions)
        layers = tuple(ModuleLayer(call.module, _attention(call)) for call in found.calls)
    except BadModel as error:
        raise BadModel(f"{_subject(raw)} cannot run through transformers: {error}") from error
    quantized = any(raw.get(name) for name in QUANTIZATION)
    return Description(
        cls,
        config,
        found.body,
        found.vocab,
        positions,
        layers,
        quantized,
        sharing,
        found.limitations,
    )


def _subject(raw: Mapping[str, Any]) -> str:
    """What cannot run, and the native family that may have been meant."""
    names = raw.get("architectures") or []
    what = f"config.json: architectures {names!r} (model_type {raw.get('model_type')!r})"
    if native(raw) is not None:
        return what
    families = {name.partition("For")[0]: name for name in FAMILIES}
    meant = str(names[0]).partition("For")[0] if names else ""
    close = difflib.get_close_matches(meant, families, 1)
    nearest = f" (the nearest is {families[close[0]]})" if close else ""
    return f"{what} has no native implementation{nearest} and"


def _within(layers: Iterable[ModuleLayer], tokens: int) -> Iterable[ModuleLayer]:
    for layer in layers:
        window = layer.attention.window
        attention = replace(layer.attention, window=window * (window < tokens))
        yield replace(layer, attention=attention)


def _library(raw: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns transformers' configuration and its class of causal language models."""
    if importlib.util.find_spec("transformers") is None:
        raise BadModel(f"transformers is not installed; {INSTALL}")
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        close = difflib.get_close_matches(str(model_type), list(CONFIG_MAPPING.keys()), 3)
        nearest = f"; similar ones: {', '.join(close)}" if close else ""
        remote = " The model's own code (auto_map) is never run." if raw.get("auto_map") else ""
        raise BadModel(f"transformers does not know it{nearest}.{remote}")
    config_class = CONFIG_MAPPING[model_type]
    if config_class not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise BadModel("transformers has no causal language model of this type")
    cls = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    named = raw.get("architectures") or [cls.__name__]
    if cls.__name__ not in named:
        raise BadModel(f"architectures {named!r} is not its causal language model, {cls.__name__}")
    _check_class(cls)
    try:
        # Penstock reads quantized weights, not the library.
        plain = {name: value for name, value in raw.items() if name not in QUANTIZATION}
        return config_class.from_dict(plain), cls
    except Exception as error:
        raise BadModel(f"transformers cannot read config.json: {reason(error)}") from error


def _check_class(cls: Any) -> None:
    """Raises BadModel for what the library's class alone shows."""
    if getattr(cls, "_is_stateful", False):
        raise BadModel("it has recurrent (state-space) layers, whose state is not in KV blocks")
    can_set = getattr(cls, "_can_set_attn_implementation", None)
    if can_set is not None and not can_set():
        raise BadModel(OWN_ATTENTION)


def _positions(config: Any) -> int:
    text = config.get_text_config(decoder=True)
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        raise BadModel("it has no max_position_embeddings, the length of its longest sequence")
    return positions


def _check(config: Any) -> None:
    """Raises BadModel for what config.json alone shows."""
    text = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise BadModel("it has an encoder")
    if text is not config:
        raise BadModel("its language model is a part of a multimodal model")
    kinds = set(getattr(text, "layer_types", None) or []) - KINDS
    if kinds:
        raise BadModel(f"layers of type {', '.join(sorted(map(str, kinds)))} are not attention")
    for rope in _ropes(getattr(text, "rope_parameters", None)):
        if rope in CHANGING_ROPE:
            raise BadModel(f"rope_type {rope!r} changes the angles of earlier tokens")


def _ropes(parameters: Any) -> Iterable[str]:
    """Yields the RoPE types of a configuration: of all layers, or by their type."""
    if isinstance(parameters, Mapping):
        if isinstance(parameters.get("rope_type"), str):
            yield parameters["rope_type"]
        for inner in parameters.values():
            yield from _ropes(inner)


def _attention(call: Call) -> AttentionSpec:
    widest = max(call.widths)
    return AttentionSpec(
        heads=call.heads,
        kv_heads=call.kv_heads,
        head_dim=widest + widest % 2,
        scale=call.scale,
        rope=None,
        window=call.window,
        softcap=call.softcap,
        sinks=call.sinks,
    )
