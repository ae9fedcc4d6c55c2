"""Probing passes: what a transformers module would compute, learned without its weights.

The module is built on torch's meta device, where tensors have shapes and no memory, and runs twice:
with masks, which tell what each layer sees, and as it will run when it serves.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from penstock.faults import BadModel
from penstock.models.fallback.interface import PAGED, PROBED, recorded, register, window_of
from penstock.models.fallback.limitations import limitations
from penstock.models.fallback.sharing import Sharing, sharing

TOKENS = 4  # of a probing pass
# Arguments of the attention interface that change no result, or that a model passes along.
NEUTRAL = {
    "cache_position", "dropout", "is_causal", "logits_to_keep", "output_attentions",
    "output_hidden_states", "output_router_logits", "position_ids", "return_dict", "use_cache",
}  # fmt: skip
OWN_ATTENTION = "it has attention of its own, not transformers' attention interface"
UNDERSTOOD = {"s_aux", "scaling", "sliding_window", "softcap"}


@dataclass(frozen=True)
class Call:
    """One layer's call of attention."""

    module: str
    """The attention module's path in the model."""
    heads: int
    kv_heads: int
    widths: tuple[int, int]
    """Elements of a head's key, and of its value."""
    scale: float
    window: int
    softcap: float
    sinks: bool


@dataclass(frozen=True)
class Probe:
    """What the probing passes found."""

    calls: tuple[Call, ...]
    """In the order of the layers."""
    body: str
    """The path of the module that makes hidden states from ids; the rest of the model is its
    head."""
    vocab: int
    limitations: tuple[str, ...] = ()
    """What is given up because transformers computes the model."""


def probe(cls: type[nn.Module], config: Any, positions: int) -> tuple[Probe, Sharing]:
    """Probes a model class for sequences of `positions` tokens, and reads how ranks share it.

    Raises BadModel, with the reason why it cannot run over paged attention.
    """
    register()
    model = built(cls, config, PROBED)
    masked = _pass(model, positions)
    _check_layers(model, config, masked.calls)
    _check_cache(config, masked.calls)
    model.set_attn_implementation(PAGED)
    served = _pass(model, None)
    if [replace(call, window=0) for call in masked.calls] != list(served.calls):
        raise BadModel("its layers call attention otherwise when they get no mask")
    accepted = inspect.signature(model.get_submodule(masked.body).forward).parameters
    for name in ("input_ids", "position_ids"):
        if name not in accepted:
            raise BadModel(f"its {masked.body} takes no {name}")
    shared = sharing(model, config, [call.module for call in masked.calls])
    return replace(masked, limitations=limitations(model, config, shared)), shared


def built(cls: Any, config: Any, attention: str) -> Any:
    """Returns the model on the meta device. Raises BadModel if the library cannot build it."""
    try:
        with torch.device("meta"):
            # Without values any dtype will do; torch 2.11 has grouped products of bfloat16 alone.
            model = cls._from_config(config, attn_implementation=attention, dtype=torch.bfloat16)
    except Exception as error:
        if isinstance(error, KeyError) and attention in error.args:
            raise BadModel(OWN_ATTENTION) from error
        raise BadModel(f"transformers cannot build it: {reason(error)}") from error
    return prepared(model)


def prepared(model: Any) -> Any:
    """Returns a model for inference that does not look at ids on the host, for a warning."""
    for module in model.modules():
        if hasattr(module, "warn_if_padding_and_no_attention_mask"):
            module.warn_if_padding_and_no_attention_mask = lambda *_: None
    return model.eval().requires_grad_(False)


def bodies_of(model: Any) -> list[str]:
    """Returns the paths of the modules that may make hidden states from ids, the outermost first.

    Some models have a wrapper in between, which their head passes by.
    """
    prefix = str(model.base_model_prefix)
    paths = [path for path in (prefix, "model") if path and hasattr(model, path)][:1]
    paths += [f"{path}.decoder" for path in paths if hasattr(model.get_submodule(path), "decoder")]
    if not paths:
        raise BadModel(f"{type(model).__name__} has no module below its head")
    return paths


def _pass(model: Any, positions: int | None) -> Probe:
    """Runs the model for sequences of `positions` tokens; None = without masks."""
    names = {id(module): name for name, module in model.named_modules()}
    calls: list[Call] = []

    def record(
        module: nn.Module,
        qkv: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        arguments: Mapping[str, Any],
    ) -> Tensor:
        if positions is None and mask is not None:
            raise BadModel("its attention adds a mask of its own (ALiBi or another bias)")
        window = 0 if positions is None else window_of(mask, positions)
        calls.append(_call(names[id(module)], qkv, window, arguments))
        q, v = qkv[0], qkv[2]
        return q.new_empty((1, TOKENS, q.shape[1], v.shape[-1]))

    ran: list[str] = []
    hooks = [
        model.get_submodule(path).register_forward_pre_hook(lambda *_, path=path: ran.append(path))
        for path in bodies_of(model)
    ]
    try:
        with recorded(record), torch.inference_mode():
            logits = model(**_inputs(masks=positions is not None)).logits
    except BadModel:
        raise
    except Exception as error:
        if "meta" in str(error):  # a tensor without values was read, or met one with values
            raise BadModel("it reads values of tensors on the host in a forward pass") from error
        raise BadModel(f"a pass without weights fails: {reason(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()
    if len(set(ran)) != len(ran) or not ran or logits.shape[:2] != (1, TOKENS):
        raise BadModel("it does not make logits from one pass over the ids")
    return Probe(tuple(calls), ran[0], int(logits.shape[-1]))


def _inputs(masks: bool) -> dict[str, Any]:
    ids = torch.zeros((1, TOKENS), dtype=torch.int64, device="meta")
    inputs = {"input_ids": ids, "position_ids": torch.empty_like(ids), "use_cache": False}
    # A mask of padding keeps the library from reading positions, which have no values here.
    return {**inputs, "attention_mask": torch.empty_like(ids)} if masks else inputs


def _call(
    name: str, qkv: tuple[Tensor, Tensor, Tensor], window: int, arguments: Mapping[str, Any]
) -> Call:
    """Reads the arguments of a call. Raises BadModel for one that Penstock does not support."""
    query, key, value = qkv
    for argument, given in arguments.items():
        if given is not None and argument not in NEUTRAL | UNDERSTOOD:
            raise BadModel(f"its attention takes an argument that is not supported: {argument}")
    if arguments.get("is_causal") is False:
        raise BadModel("its attention is not causal")
    if query.shape[2] != TOKENS or key.shape[2] != TOKENS:
        raise BadModel("its attention has queries or keys that are not one for each token")
    passed = arguments.get("sliding_window")
    if passed and window and passed != window:
        raise BadModel(f"its attention has a window of {passed}, but its mask one of {window}")
    scale = arguments.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    softcap = arguments.get("softcap") or 0.0
    for argument, number in (("scaling", scale), ("softcap", softcap)):
        if not isinstance(number, int | float):
            raise BadModel(f"its attention takes {argument} as a {type(number).__name__}")
    widths = int(key.shape[-1]), int(value.shape[-1])
    heads = int(query.shape[1]), int(key.shape[1])
    sinks = arguments.get("s_aux") is not None
    return Call(name, *heads, widths, float(scale), window, float(softcap), sinks)


def _check_layers(model: Any, config: Any, calls: tuple[Call, ...]) -> None:
    """Every layer must call attention once, and nothing else may mix tokens."""
    layers = config.get_text_config(decoder=True).num_hidden_layers
    names = [call.module for call in calls]
    if len(names) != layers:
        raise BadModel(
            f"it calls transformers' attention interface {len(names)} times for {layers} layers; "
            "each layer must, once"
        )
    if len(set(names)) != len(names):
        raise BadModel("layers share one attention module")
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.RNNBase):
            raise BadModel(f"{name} is a {type(module).__name__}, which mixes tokens")


def _check_cache(config: Any, calls: tuple[Call, ...]) -> None:
    """The library's cache must keep what masks show: some models limit what is seen by it alone."""
    from transformers import DynamicCache

    layers = DynamicCache(config=config).layers
    if any(not hasattr(layer, "is_sliding") for layer in layers):
        raise BadModel("some of its layers have no keys and values of their own")
    kept = [layer.sliding_window if layer.is_sliding else 0 for layer in layers]
    seen = [call.window for call in calls]
    if kept != seen:
        raise BadModel(f"its cache keeps windows of {kept} tokens, but its masks show {seen}")


def reason(error: Exception) -> str:
    """An error of the library, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
