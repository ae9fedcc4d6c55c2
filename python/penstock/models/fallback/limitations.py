"""What is given up because transformers computes a model, in phrases for its user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from penstock.models.fallback.plan import ROUTERS
from penstock.models.fallback.sharing import Sharing

# RoPE whose angles depend on the longest sequence of a step: keys in the cache would not fit.
CHANGING_ROPE = ("dynamic", "longrope")


def limitations(model: Any, config: Any, sharing: Sharing) -> tuple[str, ...]:
    """Returns them for a model, whose weights may be on the meta device."""
    text = config.get_text_config(decoder=True)
    stacked = _stacked(model)
    found = ["slower than a native family: the library launches more and smaller kernels"]
    found += [_ranks(sharing)]
    if stacked:
        found += [
            f"--quantize leaves {' and '.join(stacked)} as they are, and checkpoints that quantize "
            "them are refused",
            "no --ep: ranks do not share whole experts",
        ]
    if not _linears(model):
        found += ["no weight format: none of its matrices is a linear layer of the library"]
    if getattr(text, "kv_lora_rank", None):
        found += ["the KV cache has keys and values of all heads in the place of latents"]
    if isinstance(getattr(text, "rope_parameters", None), Mapping):
        found += [f"no RoPE of type {' or '.join(CHANGING_ROPE)}"]
    return tuple(found)


def _ranks(sharing: Sharing) -> str:
    """What `--tp` does."""
    if sharing.refusal:
        return f"no --tp: {sharing.refusal}"
    whole = "embeddings, norms and head are whole on each GPU"
    if any(share.optional for share in sharing.linears.values()):
        return f"with --tp, each linear layer's outputs are gathered, and {whole}"
    if sharing.whole:
        return f"with --tp, attention makes all heads on each GPU, and {whole}"
    return f"with --tp, {whole}"


def _stacked(model: nn.Module) -> list[str]:
    """The parameters that hold the matrices of several experts, by their paths in any layer."""
    paths = (name for name, weights in model.named_parameters() if weights.ndim == 3)
    experts = (path for path in paths if "experts" in path.split("."))
    return sorted({re.sub(r"\.\d+(?=\.)", ".*", path) for path in experts})


def _linears(model: Any) -> list[str]:
    """The linear layers that may have a weight format."""
    head = model.get_output_embeddings()
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
        if ROUTERS.isdisjoint(path.split("."))
    ]
