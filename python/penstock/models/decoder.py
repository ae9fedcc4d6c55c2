"""The decoder that every family of one specification shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from penstock.attention import StepContext
from penstock.config import Specification
from penstock.layers import Block, Build, Embedding, Head, Layer, Residual, RmsNorm
from penstock.weights import Target, checkpoint_names

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


class Decoder(Layer):
    """A decoder-only transformer, assembled from its specification.

    A family is a subclass with `read_config` and the names of its checkpoints.
    """

    names: ClassVar[Mapping[str, str]] = LLAMA_NAMES
    ignored: tuple[str, ...] = ()

    def __init__(self, spec: Specification, build: Build) -> None:
        self.embedding = Embedding(build, spec.vocab, spec.hidden)
        self.blocks = [Block(spec, build, i) for i in range(len(spec.layers))]
        self.norm = RmsNorm(build, spec.hidden, spec.norm)
        self.head = Head(build, spec.vocab, spec.hidden, self.embedding if spec.tied else None)
        if spec.tied:
            self.ignored = (*self.ignored, r"lm_head\.weight")

    def checkpoint_targets(self) -> dict[str, Target]:
        """Returns the target of each tensor by its name in checkpoints."""
        return checkpoint_names(self.all_targets(), self.names)

    def finish(self) -> None:
        """Lets every layer repack its weights."""
        for path, layer in self.walk():
            if path:
                layer.finish()

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
        residual = (
            self.embedding(ids) if embeddings is None else Residual(embeddings, None, partial=False)
        )
        for block in self.blocks[:-1]:
            residual = block(residual, context)
        # The last layer of a prompt's step need only compute the rows that yield a token.
        return self.norm(self.blocks[-1](residual, context, rows))[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, vocab]."""
        return self.head(hidden)
