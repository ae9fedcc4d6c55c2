"""Model families by the architecture that a config.json names."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.attention import StepContext
from penstock.config import ModelConfig
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.weights import Target

FAMILIES: dict[str, str] = {
    "LlamaForCausalLM": "llama:Llama",
    "MistralForCausalLM": "llama:Mistral",
    "Qwen2ForCausalLM": "llama:Qwen2",
}


class Model(Protocol):
    """What the worker asks of a family."""

    ignored: tuple[str, ...]  # patterns of checkpoint names that carry nothing
    blocks: list[Any]  # the layers in their order, each with its `attention`

    def __init__(self, config: ModelConfig, build: Build) -> None: ...

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """The family's reading of config.json. Raises BadModel."""

    def checkpoint_targets(self) -> dict[str, Target]:
        """Where each tensor of the checkpoint goes."""

    def finish(self) -> None:
        """Called once after the weights are loaded."""

    def forward(self, ids: Tensor, context: StepContext, rows: Tensor | None = None) -> Tensor:
        """ids [T] -> hidden states after the last norm, [T, hidden].

        With `rows` [R] int32 (R may be 0), of these places alone: [R, hidden], for less work.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, vocab]."""


@contextmanager
def fewer_layers(model: Model) -> Iterator[None]:
    """Inside, `forward` runs one layer of each kind: all of its kernels, in less time.

    Layers differ by their windows; the last one goes on with what is asked for, not with all rows.
    """
    whole = model.blocks
    kinds = {block.attention.window: block for block in whole[:-1]}
    model.blocks = [*kinds.values(), whole[-1]]
    try:
        yield
    finally:
        model.blocks = whole


def family(raw: Mapping[str, Any]) -> type[Model]:
    """The class for a config.json. Raises BadModel if there is none, or if it is quantized."""
    if raw.get("quantization_config"):
        raise BadModel(
            "config.json: quantization_config is set, but quantized models are not "
            "supported yet; use the model's bfloat16 checkpoint"
        )
    names = raw.get("architectures") or []
    if not isinstance(names, list):
        raise BadModel(f"config.json: architectures must be a list, found {names!r}")
    for name in names:
        if isinstance(name, str) and name in FAMILIES:
            module, _, cls = FAMILIES[name].partition(":")
            found: type[Model] = getattr(importlib.import_module(f"penstock.models.{module}"), cls)
            return found
    known = ", ".join(sorted(FAMILIES))
    raise BadModel(f"config.json: architectures {names!r} is not supported; supported: {known}")


DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
