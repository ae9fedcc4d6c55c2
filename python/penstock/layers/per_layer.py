"""Embeddings per layer (Gemma 3n, Gemma 4): each layer adds a row of its own of each token."""

from __future__ import annotations

from dataclasses import replace

from penstock_kernels import linear
from torch import Tensor

from penstock.config import PerLayerSpec, ResidualSpec, Specification
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.mlp import ACTIVATIONS
from penstock.layers.norm import norm_of
from penstock.layers.vocab import Embedding
from penstock.weights import Target


class WholeLinear(Layer):
    """A small matrix that every rank has, in the model's dtype."""

    def __init__(self, build: Build, outputs: int, inputs: int) -> None:
        self.weight = build.empty(outputs, inputs)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the matrix."""
        return {"weight": Target.whole(self.weight)}

    def __call__(self, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, outputs]."""
        return linear(x, self.weight, None)


class PerLayerEmbeddings(Layer):
    """Token ids and their embeddings to a row for each layer. Ranks share the table of rows by
    vocabulary. Ids beyond the table, of images and sound, have the row of id 0."""

    def __init__(self, build: Build, spec: Specification) -> None:
        assert spec.per_layer is not None
        size, hidden = spec.per_layer.size, spec.residual.hidden
        width = len(spec.layers) * size
        self.shape = len(spec.layers), size
        self.group = build.group
        stream = replace(spec.residual, hidden=width)
        self.vocab = spec.per_layer.vocab
        rows = replace(spec, residual=stream, vocab=self.vocab, embedding_scale=size**0.5)
        self.rows = Embedding(build, rows)
        self.projection = WholeLinear(build, width, hidden)
        self.scale = hidden**-0.5
        self.norm = norm_of(build, size, spec.residual.norm)

    def __call__(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """ids [T] and embeddings [T, hidden], the same on every rank -> [T, layers, size]."""
        layers, size = self.shape
        projected = self.projection(embeddings).mul_(self.scale).view(-1, size)
        normed, _ = self.norm(Residual(projected, None, False))
        rows = self.group.summed(self.rows(ids.where(ids < self.vocab, 0)))
        return normed.add_(rows.view(-1, size)).mul_(2**-0.5).view(-1, layers, size)


class PerLayerInput(Layer):
    """What a layer adds of its rows: norm(project(act(gate(hidden)) * row))."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: PerLayerSpec) -> None:
        hidden = residual.hidden
        self.gate = WholeLinear(build, spec.size, hidden)
        self.project = WholeLinear(build, hidden, spec.size)
        self.norm = norm_of(build, hidden, residual.norm)
        self.activate = ACTIVATIONS[spec.activation]

    def __call__(self, hidden: Tensor, row: Tensor) -> Tensor:
        """hidden [T, hidden] and row [T, size] -> [T, hidden]."""
        added = self.project(self.activate(self.gate(hidden)) * row)
        return self.norm(Residual(added, None, False))[0]
