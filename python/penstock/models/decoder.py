"""The decoder of all model families."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from penstock.config import Specification
from penstock.layers import (
    Build,
    Embedding,
    Head,
    Layer,
    LayerNorm,
    PositionEmbedding,
    Residual,
    RmsNorm,
    StreamBlock,
    StreamEnds,
    block_of,
    norm_of,
    streams_of,
)
from penstock.layers.attention import StepContext
from penstock.weights import Names, Shapes, Stage, Target

LLAMA_NAMES = {
    "model.embed_tokens": "embedding",
    "model.layers.{}.input_layernorm": "blocks.{}.attention_norm",
    "model.layers.{}.self_attn.q_proj": "blocks.{}.attention.qkv.q",
    "model.layers.{}.self_attn.k_proj": "blocks.{}.attention.qkv.k",
    "model.layers.{}.self_attn.v_proj": "blocks.{}.attention.qkv.v",
    "model.layers.{}.self_attn.o_proj": "blocks.{}.attention.out",
    "model.layers.{}.post_attention_layernorm": "blocks.{}.mlp_norm",
    "model.layers.{}.mlp.gate_proj": "blocks.{}.mlp.gate_up.gate",
    "model.layers.{}.mlp.up_proj": "blocks.{}.mlp.gate_up.up",
    "model.layers.{}.mlp.down_proj": "blocks.{}.mlp.down",
    "model.norm": "norm",
    "lm_head": "head",
}

# Norms of queries and keys.
QK_NORM_NAMES = {
    "model.layers.{}.self_attn.q_norm": "blocks.{}.attention.q_norm",
    "model.layers.{}.self_attn.k_norm": "blocks.{}.attention.k_norm",
}

LATENT_NAMES = {
    "model.layers.{}.self_attn.q_a_proj": "blocks.{}.attention.qkv.q_a",
    "model.layers.{}.self_attn.q_a_layernorm": "blocks.{}.attention.query_norm",
    "model.layers.{}.self_attn.q_b_proj": "blocks.{}.attention.query_up",
    "model.layers.{}.self_attn.kv_a_proj_with_mqa": "blocks.{}.attention.qkv.kv",
    "model.layers.{}.self_attn.kv_a_layernorm": "blocks.{}.attention.kv_norm",
    "model.layers.{}.self_attn.kv_b_proj": "blocks.{}.attention.kv_up",
}

# Of a mixture of experts, as most families spell it.
EXPERT_NAMES = {
    "model.layers.{}.mlp.gate": "blocks.{}.mlp.router",
    "model.layers.{}.mlp.experts.{}.gate_proj": "blocks.{}.mlp.experts.{}.gate_up.gate",
    "model.layers.{}.mlp.experts.{}.up_proj": "blocks.{}.mlp.experts.{}.gate_up.up",
    "model.layers.{}.mlp.experts.{}.down_proj": "blocks.{}.mlp.experts.{}.down",
}

SHARED_EXPERT_NAMES = {
    "model.layers.{}.mlp.shared_experts.gate_proj": "blocks.{}.mlp.shared.gate_up.gate",
    "model.layers.{}.mlp.shared_experts.up_proj": "blocks.{}.mlp.shared.gate_up.up",
    "model.layers.{}.mlp.shared_experts.down_proj": "blocks.{}.mlp.shared.down",
}

# The router's correction bias, where it is not in the router's module.
CORRECTION_PATH = "blocks.{}.mlp.router.e_score_correction_bias"


def renamed(names: Mapping[str, str], **changes: str | None) -> dict[str, str]:
    """Returns `names` with other last components of modules, or without those that are None."""
    found = {}
    for module, path in names.items():
        before, _, last = module.rpartition(".")
        new = changes.get(last, last)
        if new is not None:
            found[f"{before}.{new}" if before else new] = path
    return found


VISION = (r"model\.visual\..*",)
"""Tensors of images that text models ignore, where `with_images` gives the names."""


def with_images(names: Mapping[str, str]) -> dict[str, str]:
    """Returns the names that checkpoints with images have in transformers since 4.52."""
    return {
        name.replace("model.", "model.language_model.", 1): path for name, path in names.items()
    }


class Decoder(Layer):
    """A decoder-only transformer, assembled from its specification.

    A family is a subclass with `read_config` and the names of its checkpoints.
    """

    names: ClassVar[Mapping[str, str]] = LLAMA_NAMES
    older: ClassVar[Mapping[str, str]] = {}
    ignored: tuple[str, ...] = ()
    expert_scales: ClassVar[str] = ""
    """How names of experts' scales end in checkpoints whose config.json does not say that experts
    are in mxfp8; they have no other tensor of that name."""
    predicts_further: ClassVar[int] = 0
    """Layers that checkpoints have behind the last one, for further tokens; they are not loaded."""

    def __init__(self, spec: Specification, build: Build) -> None:
        self.tensor_names = self.checkpoint_names(spec)
        build = replace(build, names=self.tensor_names)
        self.embedding = Embedding(build, spec)
        self.positions = PositionEmbedding(build, spec) if spec.learned_positions else None
        self.blocks = [self.block(spec, build, i) for i in range(spec.blocks)]
        self.streams = self.stream_ends(spec, build)
        self.norm = self.last_norm(spec, build)
        self.head = Head(build.below("head"), spec, self.embedding if spec.tied else None)
        self.ignored = (*self.ignored, *build.methods.unread)
        if spec.tied:
            self.ignored = (*self.ignored, *_heads(self.names))
        for layer in range(self.predicts_further):
            after = rf"{_layers(self.names)}\.{len(spec.layers) + layer}\..*"
            self.ignored = (*self.ignored, after)

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Returns `names`, and the forms in which checkpoints store tensors. Override it where
        they depend on the specification."""
        return Names(cls.names)

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Returns the specification for a checkpoint with these tensors. Override it where
        checkpoints of the family store tensors in several ways."""
        return spec

    @staticmethod
    def block(spec: Specification, build: Build, index: int) -> Any:
        """Builds layer `index`. Override it for a family that connects its layers differently."""
        return (StreamBlock if spec.residual.streams else block_of)(spec, build, index)

    @staticmethod
    def stream_ends(spec: Specification, build: Build) -> StreamEnds | None:
        """Builds how the residual stream begins and ends, if not as the embedding and in a sum.
        Override it for a family with one stream that is special there."""
        return streams_of(build, spec)

    @staticmethod
    def last_norm(spec: Specification, build: Build) -> RmsNorm | LayerNorm | None:
        """Builds the norm behind the last layer. Override it for a family without one."""
        return norm_of(build, spec.residual.hidden, spec.final_norm or spec.residual.norm)

    def checkpoint_targets(self) -> dict[str, list[Target]]:
        """Returns the targets of each tensor by its name in checkpoints."""
        return self.tensor_names.targets(self.all_targets())

    def finish(self) -> None:
        """Lets every layer repack its weights."""
        for _, child in self.children():
            _finish(child)

    def stages(self) -> list[Stage]:
        """How to load this model child by child, if memory is allocated late."""
        return [self._stage(path, child) for path, child in self.children()]

    def _stage(self, path: str, child: Layer) -> Stage:
        def begin() -> dict[str, list[Target]]:
            for _, layer in child.walk():
                layer.prepare()
            return self.tensor_names.targets(child.all_targets(path))

        return Stage(begin, lambda: _finish(child))

    def forward(
        self,
        ids: Tensor,
        context: StepContext,
        rows: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """ids [T] -> hidden states after the last norm, [T, hidden], or [R, hidden] of `rows`.

        `embeddings` [T, hidden], the same on every rank, replace the ids' embeddings.
        """
        residual = self._entry(ids, context, embeddings)
        if self.streams is not None:
            residual = self.streams.begin(residual)
        for block in self.blocks[:-1]:
            residual = block(residual, context)
        # The last layer of a prompt's step need only compute the rows that yield a token.
        residual = self.blocks[-1](residual, context, rows)
        if self.streams is not None:
            residual = self.streams.end(residual)
        return residual.x if self.norm is None else self.norm(residual)[0]

    def _entry(self, ids: Tensor, context: StepContext, embeddings: Tensor | None) -> Residual:
        positions = None if self.positions is None else self.positions(context.positions)
        if embeddings is not None:
            return Residual(embeddings, positions, False)
        return Residual(self.embedding(ids), positions, self.embedding.group.size > 1)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, vocab]."""
        return self.head(hidden)


def _layers(names: Mapping[str, str]) -> str:
    """The pattern of what names of layers in checkpoints begin with."""
    module = next(module for module, path in names.items() if path.startswith("blocks.{}"))
    return re.escape(module.partition(".{}")[0])


def _heads(names: Mapping[str, str]) -> list[str]:
    """The patterns of names under which a checkpoint may store a tied embedding once more."""
    heads = {"lm_head", *(module for module, path in names.items() if path == "head")}
    return [re.escape(f"{module}.weight") for module in sorted(heads)]


def _finish(tree: Layer) -> None:
    for _, layer in tree.walk():
        layer.finish()
