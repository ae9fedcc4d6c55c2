"""Gated DeltaNet (arXiv:2412.06464): linear attention over a state per sequence.

Ranks share the key heads, and with each its value heads. The convolution's channels, the states and
the per-head numbers go with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from penstock_kernels import causal_conv, gated_delta_rule, gated_head_norm, linear
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.config import DeltaNetSpec, ProjectionOrder, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear, RowLinear, column_targets
from penstock.layers.norm import RmsNorm
from penstock.layers.recurrent import Convolution, Recurrent, by_kind
from penstock.parallel import Group
from penstock.quant import WeightTensor
from penstock.weights import Target


class HeadInputs(Layer):
    """The matrices that yield each value head's strength and decay.

    They are floats whatever the checkpoint's format is: a decay acts on all that follows.
    """

    def __init__(self, build: Build, residual: ResidualSpec, spec: DeltaNetSpec) -> None:
        self.group = build.group
        self.heads = spec.value_heads // build.group.size
        self.by_key_head = spec.order is ProjectionOrder.BY_KEY_HEAD
        self.key_heads = spec.key_heads // build.group.size
        self.weight = build.empty(2 * self.heads, residual.hidden)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of this rank's rows."""
        half = self.heads
        parts = {"both": 2 * half} if self.by_key_head else {"strength": half, "decay": half}
        stored = {"weight": WeightTensor(self.weight, 0, 1)}
        return column_targets(parts, stored, None, self.group)

    def finish(self) -> None:
        """Puts all strengths before all decays."""
        if self.by_key_head:
            shared = self.heads // self.key_heads
            order = by_kind(self.key_heads, [shared, shared], self.weight.device)
            self.weight.copy_(self.weight[order])

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, hidden] -> strengths and decays [T, this rank's value heads]."""
        found = linear(x, self.weight, None)
        return found[:, : self.heads], found[:, self.heads :]


class DeltaNet(Recurrent):
    """Linear attention of layer `index`: projections, a short convolution, the gated delta rule, a
    gated norm of each head, and the output projection."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: DeltaNetSpec, index: int
    ) -> None:
        self.index = index
        self.group: Group = build.group
        self.spec = spec
        self.key_heads = build.group.share(spec.key_heads, "linear_num_key_heads")
        self.heads = spec.value_heads // build.group.size
        keys, values = spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
        self.keys, self.values = keys // build.group.size, values // build.group.size
        parts = {"q": keys, "k": keys, "v": values, "gate": values}
        if spec.order is ProjectionOrder.BY_KEY_HEAD:
            parts = {"all": sum(parts.values())}
        self.inputs = ColumnLinear(build.below("inputs"), parts, residual, False)
        self.head_inputs = HeadInputs(build, residual, spec)
        channels = {"q": self.keys, "k": self.keys, "v": self.values}
        self.convolution = Convolution(build, channels, spec.width)
        self.decay_log = build.empty(self.heads, dtype=torch.float32)
        self.decay_bias = build.empty(self.heads, dtype=torch.float32)
        self.norm = RmsNorm(build, spec.value_dim, spec.norm)
        self.output = RowLinear(build.below("output"), residual, values, False)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the numbers of this rank's value heads."""
        rank, size = self.group.rank, self.group.size
        return {
            "A_log": Target.share(self.decay_log, 0, rank, size),
            "dt_bias": Target.share(self.decay_bias, 0, rank, size),
        }

    def finish(self) -> None:
        """Puts all queries before all keys, values and gates."""
        if self.spec.order is ProjectionOrder.BY_KEY_HEAD:
            values = self.values // self.key_heads
            sizes = [self.spec.key_dim, self.spec.key_dim, values, values]
            self.inputs.reorder(by_kind(self.key_heads, sizes, self.decay_log.device))

    def mix(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """x [T, hidden] -> the input of `output` [T, values], or [R, values] of `rows`."""
        inputs = self.inputs.product(x)
        channels = 2 * self.keys + self.values
        mixed = self._attend(inputs[:, :channels], self.head_inputs(x), context)
        gate = inputs[:, channels:].unflatten(1, (self.heads, -1))
        if rows is not None:
            mixed, gate = mixed.index_select(0, rows), gate.index_select(0, rows)
        activation = "sigmoid" if self.spec.sigmoid_gate else "silu"
        norm = self.norm.weight, self.norm.eps
        return gated_head_norm(mixed, gate, *norm, activation=activation).flatten(1)

    def _attend(
        self, inputs: Tensor, head_inputs: tuple[Tensor, Tensor], context: StepContext
    ) -> Tensor:
        """Queries, keys and values side by side [T, channels] -> [T, value heads, value_dim]."""
        mixed = inputs.new_empty(inputs.shape)
        out = inputs.new_empty((len(inputs), self.heads, self.spec.value_dim))
        self.run([inputs, *head_inputs, mixed, out], context)
        return out

    def recur(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs tokens: inputs, strengths, decays, the convolution's output, the output."""
        inputs, strength, decay, mixed, out = tokens
        assert cache.inputs is not None and cache.memory is not None
        causal_conv(inputs, self.convolution.weight[:, 0], cache.inputs, runs, mixed)
        q, k, v = mixed.split([self.keys, self.keys, self.values], 1)
        q, k = (heads.unflatten(1, (self.key_heads, -1)) for heads in (q, k))
        v = v.unflatten(1, (self.heads, -1))
        gates = strength, decay, self.decay_log, self.decay_bias
        gated_delta_rule(q, k, v, *gates, cache.memory, runs, out, self.spec.most)
