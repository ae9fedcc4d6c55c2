"""Embedding and output head, their vocabulary shared by the ranks (Megatron-LM, section 3).

A vocabulary that the ranks cannot share equally is padded: each rank holds ceil(vocab / size)
rows, the last ones of the last rank unused.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from penstock.layers.base import Build, Layer
from penstock.layers.residual import Residual
from penstock.parallel import Group
from penstock.weights import Target


class Embedding(Layer):
    """Token ids to rows."""

    def __init__(self, build: Build, vocab: int, hidden: int) -> None:
        self.group = build.group
        self.vocab = vocab
        self.rows = -(-vocab // self.group.size)
        self.first = self.group.rank * self.rows
        self.weight = build.empty(self.rows, hidden).zero_()

    def targets(self) -> dict[str, Target]:
        """This rank's rows."""
        return {"weight": _rows(self.weight, self.vocab, self.first)}

    def __call__(self, ids: Tensor) -> Residual:
        """[T] int -> [T, hidden]; of several ranks, each has zeros for other ranks' rows."""
        if self.group.size == 1:
            return Residual(F.embedding(ids, self.weight), None, False)
        local = ids - self.first
        mine = (local >= 0) & (local < self.rows)
        rows = F.embedding(local.clamp(0, self.rows - 1), self.weight)
        return Residual(rows.mul_(mine.unsqueeze(-1)), None, True)


class Head(Layer):
    """Hidden states to logits; shares the embedding's matrix when the model ties them."""

    def __init__(self, build: Build, vocab: int, hidden: int, tied: Embedding | None) -> None:
        self.method = build.linear
        self.group: Group = build.group
        self.vocab = vocab
        self.tied = tied is not None
        self.rows = -(-vocab // self.group.size)
        matrix = build.empty(self.rows, hidden).zero_() if tied is None else tied.weight
        self.weights: Mapping[str, Tensor] = {"weight": matrix}

    def targets(self) -> dict[str, Target]:
        """This rank's rows; none when tied."""
        if self.tied:
            return {}
        first = self.group.rank * self.rows
        return {"weight": _rows(self.weights["weight"], self.vocab, first)}

    def finish(self) -> None:
        """Lets the method repack; an embedding keeps its own form."""
        self.weights = self.method.finish(self.weights)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> logits [R, vocab], on every rank."""
        logits = self.method.apply(self.weights, hidden, None)
        return self.group.join_columns(logits)[:, : self.vocab]


def _rows(weight: Tensor, vocab: int, first: int) -> Target:
    last = min(first + len(weight), vocab)
    region = (slice(first, last), slice(0, weight.shape[1]))
    return Target(weight[: max(last - first, 0)], (vocab, weight.shape[1]), region)
