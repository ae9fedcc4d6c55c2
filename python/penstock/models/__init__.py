"""Model families, by the architecture in config.json."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.attention import StepContext
from penstock.config import Specification
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.weights import Stage, Target

FAMILIES: dict[str, str] = {
    "Gemma2ForCausalLM": "gemma2:Gemma2",
    "Gemma3ForCausalLM": "gemma3:Gemma3Text",
    "Gemma3ForConditionalGeneration": "gemma3:Gemma3",
    "Glm4MoeForCausalLM": "glm4_moe:Glm4Moe",
    "GptOssForCausalLM": "gpt_oss:GptOss",
    "LlamaForCausalLM": "llama:Llama",
    "MistralForCausalLM": "llama:Mistral",
    "MixtralForCausalLM": "mixtral:Mixtral",
    "OlmoeForCausalLM": "olmoe:Olmoe",
    "Phi3ForCausalLM": "phi3:Phi3",
    "PhiMoEForCausalLM": "phimoe:Phimoe",
    "PhimoeForCausalLM": "phimoe:Phimoe",
    "Qwen2ForCausalLM": "qwen:Qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe:Qwen2Moe",
    "Qwen3ForCausalLM": "qwen:Qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe:Qwen3Moe",
}


class Model(Protocol):
    """The interface of a model to the worker. `Decoder` implements it."""

    ignored: tuple[str, ...]  # patterns of checkpoint tensors that are not loaded
    blocks: list[Any]  # the layers in their order; those of equal `kind` launch the same kernels

    def __init__(self, spec: Specification, build: Build) -> None: ...

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads config.json. Raises BadModel."""

    def checkpoint_targets(self) -> dict[str, list[Target]]:
        """Returns the targets of each tensor by its name in checkpoints."""

    def stages(self) -> list[Stage]:
        """Returns how to load the model: part by part, each finished before the next one."""

    def kept_bytes(self) -> int:
        """Returns the bytes of the weights as they are kept on this rank."""

    def forward(
        self,
        ids: Tensor,
        context: StepContext,
        rows: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """ids [T] -> hidden states after the last norm, [T, hidden].

        With `rows` [R] int32 (R may be 0), returns these rows alone, [R, hidden], for less work.
        `embeddings` [T, hidden], the same on every rank, replace the ids' embeddings.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, vocab]."""


@contextmanager
def fewer_layers(model: Model) -> Iterator[None]:
    """Inside this context, `forward` runs one layer of each kind, so it launches every kernel in
    less time.

    The last layer always runs, because it computes only the requested rows.
    """
    whole = model.blocks
    kinds = {block.kind: block for block in whole[:-1]}
    model.blocks = [*kinds.values(), whole[-1]]
    try:
        yield
    finally:
        model.blocks = whole


def family(raw: Mapping[str, Any]) -> type[Model]:
    """Returns the class for a config.json. Raises BadModel if there is none."""
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
