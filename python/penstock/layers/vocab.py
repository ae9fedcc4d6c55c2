"""Embedding and output head, sharded over the vocabulary (Megatron-LM, section 3).

If the vocabulary size is not divisible by the number of ranks, it is padded: each rank holds
ceil(vocab / size) rows, and the last rows of the last rank are unused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.config import Specification
from penstock.faults import BadModel
from penstock.layers.base import Build, Layer
from penstock.quant import LinearMethod, Weights
from penstock.weights import Target


@dataclass(frozen=True)
class Span:
    """The part of a vocabulary that a rank holds."""

    vocab: int
    rows: int  # of every rank, unused ones included
    rank: int

    def target(self, data: Tensor, dim: int = 0) -> Target:
        """Returns the target of a tensor whose dimension `dim` corresponds to the rows. Raises
        BadModel if packing does not allow this split."""
        pack = self.rows // data.shape[dim]
        if self.vocab % pack or self.rows % pack:
            raise BadModel(
                f"the weight format packs {pack} rows of the head into one number, by which "
                f"vocab_size, {self.vocab}, cannot be shared"
            )
        first = self.rank * self.rows // pack
        last = min(first + data.shape[dim], self.vocab // pack)
        shape = list(data.shape)
        shape[dim] = self.vocab // pack
        region = [slice(0, n) for n in shape]
        region[dim] = slice(first, last)
        used = data.narrow(dim, 0, max(last - first, 0))
        return Target(used, tuple(shape), tuple(region))


ROWS = 4096  # that are normalised at a time


class Embedding(Layer):
    """Token ids to rows."""

    def __init__(self, build: Build, spec: Specification) -> None:
        self.group = build.group
        self.rows = -(-spec.vocab // self.group.size)
        self.span = Span(spec.vocab, self.rows, self.group.rank)
        self.first = self.group.rank * self.rows
        # As transformers has it: the factor is of float32 first, then of the model's dtype.
        scale = torch.tensor(spec.embedding_scale, dtype=torch.float32)
        self.scale = float(scale.to(build.dtype))
        self.eps = spec.embedding_eps
        self.weight = build.empty(self.rows, spec.residual.hidden).zero_()
        hidden = spec.residual.hidden
        self.norm_weight = build.empty(hidden) if spec.embedding_weight else None

    def targets(self) -> dict[str, Target]:
        """Returns the targets of this rank's rows, and of the weight of their norm."""
        found = {"weight": self.span.target(self.weight)}
        if self.norm_weight is not None:
            found["norm_weight"] = Target.whole(self.norm_weight)
        return found

    def finish(self) -> None:
        """Normalises the rows if the model normalises embeddings."""
        for rows in self.weight.split(ROWS) if self.eps else ():
            wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
            square = wide.square().mean(-1, keepdim=True)
            rows.copy_(wide * (square + self.eps).rsqrt())
            if self.norm_weight is not None:
                rows.mul_(self.norm_weight)

    def __call__(self, ids: Tensor) -> Tensor:
        """[T] int -> [T, hidden]; zeros for ids of other ranks' rows."""
        if self.group.size == 1:
            rows = F.embedding(ids, self.weight)
        else:
            local = ids - self.first
            mine = (local >= 0) & (local < self.rows)
            rows = F.embedding(local.clamp(0, self.rows - 1), self.weight)
            rows.mul_(mine.unsqueeze(-1))
        return rows if self.scale == 1 else rows.mul_(self.scale)


class PositionEmbedding(Layer):
    """A learned row per position, replicated on every rank."""

    def __init__(self, build: Build, spec: Specification) -> None:
        rows = spec.position_offset + spec.max_positions
        self.weight = build.empty(rows, spec.residual.hidden)
        self.rows = self.weight[spec.position_offset :]

    def targets(self) -> dict[str, Target]:
        """Returns the target of all rows."""
        return {"weight": Target.whole(self.weight)}

    def __call__(self, positions: Tensor) -> Tensor:
        """[T] int -> [T, hidden]."""
        return F.embedding(positions, self.rows)


class Head(Layer):
    """Hidden states to logits; shares the embedding's matrix when the model ties them."""

    def __init__(self, build: Build, spec: Specification, tied: Embedding | None) -> None:
        self.group = build.group
        self.device = build.device
        self.vocab = spec.vocab
        self.rows = -(-spec.vocab // self.group.size)
        self.span = Span(spec.vocab, self.rows, self.group.rank)
        self.scale, self.softcap = spec.logits_scale, spec.logits_softcap
        self.bias = build.empty(self.rows).zero_() if spec.head_bias else None
        self.method = _head_method(build) if tied is None else build.methods.plain
        if tied is None:
            self.stored = self.method.allocate(self.rows, spec.residual.hidden)
            self.weights: Weights = {k: s.data.zero_() for k, s in self.stored.items()}
        else:
            self.stored = {}
            self.weights = {"weight": tied.weight}

    def targets(self) -> dict[str, Target]:
        """Returns the targets of this rank's rows, those of a tied matrix excepted."""
        found = {}
        for name, stored in self.stored.items():
            target = Target.whole(stored.data)
            if stored.output_dim is not None:
                target = self.span.target(stored.data, stored.output_dim)
            found[name] = stored.fill(target)
        return found if self.bias is None else {**found, "bias": self.span.target(self.bias)}

    def prepare(self) -> None:
        """Allocates what the method has left for this moment."""
        if any(stored.data.is_meta for stored in self.stored.values()):
            self.stored = {k: s.allocated(self.device) for k, s in self.stored.items()}
            self.weights = {k: s.data.zero_() for k, s in self.stored.items()}

    def kept(self) -> Iterator[Tensor]:
        """Yields what the method keeps, and the bias."""
        yield from self.weights.values()
        if self.bias is not None:
            yield self.bias

    def finish(self) -> None:
        """Lets the method repack the matrix; a tied embedding stays as it is."""
        self.weights = self.method.finish(self.weights)
        self.stored = {}

    def __call__(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> logits [R, vocab], on every rank."""
        logits = self.method.apply(self.weights, hidden, self.bias)
        if self.scale != 1:
            logits.mul_(self.scale)
        if self.softcap:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return self.group.join_columns(logits)[:, : self.vocab]


def _head_method(build: Build) -> LinearMethod:
    """Returns the head's weight format. Formats that leave the head as it is call it lm_head, as
    most families do."""
    methods = build.methods
    module = next(build.names.sources(build.path), build.path)
    if module.endswith("lm_head") or methods.of("lm_head") is not methods.plain:
        return build.method()
    return methods.plain
