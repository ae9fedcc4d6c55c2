"""What recurrent layers have in common: a state per sequence, and a short convolution before it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.linear import RowLinear, column_targets
from penstock.layers.norm import Norm
from penstock.parallel import Share
from penstock.quant import WeightTensor
from penstock.weights import Target

Recur = Callable[[Sequence[Tensor], StateCache, Runs], None]
"""From the rows of tensors [T, ...] that sequences run, and what is kept of them: writes states,
and outputs among the tensors."""


class StateRuns(Layer):
    """A layer over the states of sequences, of layer `index`."""

    index: int

    def run(self, tokens: Sequence[Tensor], context: StepContext, recur: Recur) -> None:
        """Runs the decodes, then the chunks of a step: calls `recur` with their rows of `tokens`,
        inputs and outputs [T, ...]."""
        cache = context.caches[self.index]
        assert isinstance(cache, StateCache)
        tables = context.places[self.index].tables
        if context.decodes is not None:
            decodes = context.decodes
            one_each = Runs(tables, decodes.slots, None, decodes.kv_len, 1)
            recur([x[: decodes.count] for x in tokens], cache, one_each)
        if context.chunks is not None:
            chunks = context.chunks
            rows = chunks.slots, chunks.query_start, chunks.kv_len, chunks.max_query
            recur(tokens, cache, Runs(tables, *rows))


class Recurrent(StateRuns, ABC):
    """As StateRuns, in the place of attention; subclasses say how tokens change states."""

    output: RowLinear

    def __call__(
        self, norm: Norm, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the layer.

        Updates the states of this step's sequences. With `rows` [R], returns these rows alone, [R,
        hidden].
        """
        x, total = norm(residual)
        mixed = self.mix(x, context, rows)
        return self.output(mixed, total if rows is None else total.index_select(0, rows))

    def product(self, x: Tensor, context: StepContext, rows: Tensor | None = None) -> Tensor:
        """Returns the output for a normalised x, both [T, hidden]; a partial sum with several
        ranks."""
        return self.output.product(self.mix(x, context, rows))

    @abstractmethod
    def mix(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """x [T, hidden] -> the input of `output` [T, ...], or [R, ...] of `rows`."""

    def run(
        self, tokens: Sequence[Tensor], context: StepContext, recur: Recur | None = None
    ) -> None:
        """As `StateRuns.run`; `recur` is by default the method."""
        super().run(tokens, context, recur or self.recur)

    @abstractmethod
    def recur(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs tokens; see `StateRuns.run`."""


class Convolution(Layer):
    """The weights of the short convolution of this rank's channels."""

    def __init__(
        self,
        build: Build,
        parts: Mapping[str, int],
        width: int,
        bias: bool = False,
        shares: Mapping[str, Share] | None = None,
    ) -> None:
        """`parts`: channels on this rank; `shares` has those that ranks do not share equally."""
        self.parts = parts
        self.shares = shares
        self.group = build.group
        channels = sum(parts.values())
        self.weight = build.empty(channels, 1, width)
        self.bias = build.empty(channels) if bias else None

    def targets(self) -> dict[str, Target]:
        """Returns the targets of each part's channels."""
        stored = {"weight": WeightTensor(self.weight, 0, None)}
        return column_targets(self.parts, stored, self.bias, self.group, self.shares)


def by_kind(heads: int, sizes: list[int], device: torch.device) -> Tensor:
    """Returns the order that puts the first `sizes[0]` rows of all heads before the next
    `sizes[1]` rows of all heads, and so on."""
    whole = torch.arange(heads * sum(sizes), device=device).view(heads, -1)
    return torch.cat([part.flatten() for part in whole.split(sizes, 1)])
