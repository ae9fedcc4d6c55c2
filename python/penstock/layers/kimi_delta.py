"""Kimi Delta Attention (arXiv:2510.26692): the gated delta rule with a decay of each channel.

Ranks share the heads, and with them the convolution's channels, the states and the per-head
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from penstock_kernels import causal_conv, gated_delta_rule, gated_head_norm, linear
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.config import KimiDeltaSpec, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear, RowLinear, column_targets
from penstock.layers.norm import RmsNorm
from penstock.layers.recurrent import Convolution, Recurrent
from penstock.parallel import Group, Share
from penstock.quant import WeightTensor
from penstock.weights import Flat, Target


class HeadGates(Layer):
    """The matrices that yield each head's strength, and by way of few numbers the decays and gates
    of its channels.

    They are floats whatever the checkpoint's format is: a decay acts on all that follows. Every
    rank has the first matrices of decays and gates, and its heads' rows of the others.
    """

    def __init__(self, build: Build, residual: ResidualSpec, spec: KimiDeltaSpec) -> None:
        self.group: Group = build.group
        self.head_dim = spec.head_dim
        heads = spec.heads // build.group.size
        narrow = dict.fromkeys(("decay_narrow", "gate_narrow"), spec.head_dim)
        self.parts = {**narrow, "strength": heads}
        self.shares = dict.fromkeys(narrow, Share())
        self.first = build.empty(sum(self.parts.values()), residual.hidden)
        self.decay = build.empty(heads * spec.head_dim, spec.head_dim)
        self.gate = build.empty(heads * spec.head_dim, spec.head_dim)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the rows of each matrix."""
        stored = {"weight": WeightTensor(self.first, 0, 1)}
        found = column_targets(self.parts, stored, None, self.group, self.shares)
        for name, matrix in (("decay_widen", self.decay), ("gate_widen", self.gate)):
            shared = Target.share(matrix, 0, self.group.rank, self.group.size)
            found[f"{name}.weight"] = shared
        return found

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, hidden] -> strengths [T, H], decays and gates [T, H, head_dim] of this rank's
        heads."""
        decay, gate, strength = linear(x, self.first, None).split(list(self.parts.values()), 1)
        heads = -1, self.head_dim
        decay = linear(decay, self.decay, None).unflatten(1, heads)
        return strength, decay, linear(gate, self.gate, None).unflatten(1, heads)


class WholeHeadGates(Layer):
    """As HeadGates, with one matrix each for decays and gates, whose rows ranks share."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: KimiDeltaSpec) -> None:
        self.group: Group = build.group
        self.head_dim = spec.head_dim
        heads = spec.heads // build.group.size
        channels = heads * spec.head_dim
        self.parts = {"decay": channels, "gate": channels, "strength": heads}
        self.matrix = build.empty(sum(self.parts.values()), residual.hidden)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the rows of each matrix."""
        stored = {"weight": WeightTensor(self.matrix, 0, 1)}
        return column_targets(self.parts, stored, None, self.group, {})

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `HeadGates`."""
        decay, gate, strength = linear(x, self.matrix, None).split(list(self.parts.values()), 1)
        heads = -1, self.head_dim
        return strength, decay.unflatten(1, heads), gate.unflatten(1, heads)


class KimiDelta(Recurrent):
    """Linear attention of layer `index`: projections, a short convolution, the gated delta rule, a
    norm of each head times the sigmoid of its gate, and the output projection."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: KimiDeltaSpec, index: int
    ) -> None:
        self.index = index
        self.group: Group = build.group
        self.heads = build.group.share(spec.heads, spec.shared[0])
        self.head_dim = spec.head_dim
        inner = spec.heads * spec.head_dim
        parts = dict.fromkeys("qkv", inner)
        self.inputs = ColumnLinear(build.below("inputs"), parts, residual, False)
        gates = HeadGates if spec.narrow else WholeHeadGates
        self.head_gates = gates(build, residual, spec)
        self.bound = spec.bound
        self.convolution = Convolution(build, self.inputs.parts, spec.width)
        self.decay_log = build.empty(self.heads, dtype=torch.float32)
        self.decay_bias = build.empty(self.heads, spec.head_dim, dtype=torch.float32)
        self.norm = RmsNorm(build, spec.head_dim, spec.norm)
        self.output = RowLinear(build.below("output"), residual, inner, False)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the numbers of this rank's heads."""
        rank, size = self.group.rank, self.group.size
        found = {"A_log": self.decay_log, "dt_bias": self.decay_bias}
        shared = {name: Target.share(data, 0, rank, size) for name, data in found.items()}
        return {name: replace(target, form=Flat()) for name, target in shared.items()}

    def mix(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """x [T, hidden] -> the input of `output` [T, channels], or [R, channels] of `rows`."""
        inputs = self.inputs.product(x)
        strength, decay, gate = self.head_gates(x)
        mixed, out = inputs.new_empty(inputs.shape), inputs.new_empty(decay.shape)
        self.run([inputs, strength, decay, mixed, out], context)
        if rows is not None:
            out, gate = out.index_select(0, rows), gate.index_select(0, rows)
        weight, eps = self.norm.weight, self.norm.eps
        return gated_head_norm(out, gate, weight, eps, activation="sigmoid").flatten(1)

    def recur(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs tokens: inputs, strengths, decays, the convolution's output, the output."""
        inputs, strength, decay, mixed, out = tokens
        assert cache.inputs is not None and cache.memory is not None
        causal_conv(inputs, self.convolution.weight[:, 0], cache.inputs, runs, mixed)
        q, k, v = mixed.unflatten(1, (3, self.heads, self.head_dim)).unbind(1)
        gates = strength, decay, self.decay_log, self.decay_bias
        gated_delta_rule(q, k, v, *gates, cache.memory, runs, out, bound=self.bound)
