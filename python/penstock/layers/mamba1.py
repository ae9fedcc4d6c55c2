"""Mamba-1 (arXiv:2312.00752): a state per channel, each of whose elements decays by itself.

Ranks share the channels, and with them the states. B, C and the few numbers that yield all steps of
a head are sums over its channels, so every rank with some of these has the whole of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from penstock_kernels import causal_conv, channel_scan, linear
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.config import Mamba1Spec, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.mamba1_heads import OwnHeads, beside
from penstock.layers.norm import RmsNorm
from penstock.layers.recurrent import Convolution, Recurrent, by_kind
from penstock.weights import Target


class Selection(Layer):
    """B, C and the steps of a token, by way of a projection of each head's channels.

    Both matrices are floats whatever the checkpoint's format is: a step acts on all that follows.
    """

    def __init__(self, build: Build, spec: Mamba1Spec, heads: OwnHeads) -> None:
        self.heads = heads
        self.sizes = [spec.step_rank, spec.state_dim, spec.state_dim]
        self.narrow = build.empty(heads.count, sum(self.sizes), heads.size)
        self.step = build.empty(heads.count, heads.size, spec.step_rank)
        self.step_bias = build.empty(heads.channels, dtype=torch.float32)
        self.step_norm = self.b_norm = self.c_norm = None
        if spec.norm is not None:
            self.step_norm = RmsNorm(build, spec.step_rank, spec.norm)  # of what yields the steps
            self.b_norm = RmsNorm(build, spec.state_dim, spec.norm)
            self.c_norm = RmsNorm(build, spec.state_dim, spec.norm)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of this rank's columns of the first matrix, and rows of the other."""
        bias = self.step_bias.view(self.heads.count, -1)
        return {
            "narrow.weight": self.heads.target(self.narrow, 2),
            "step.weight": self.heads.target(self.step, 1),
            "step.bias": self.heads.target(bias, 1),
        }

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, this rank's channels] -> B and C [T, its heads, state_dim], the same on every rank
        with channels of a head, and the steps [T, its channels], to which `step_bias` is not added
        yet."""
        parts = zip(x.split(self.heads.size, 1), self.narrow.unbind(), strict=True)
        found = self.heads.summed(beside([linear(part, matrix, None) for part, matrix in parts]))
        few, b, c = found.flatten(0, 1).split(self.sizes, 1)
        normed = _normed(self.step_norm, few), _normed(self.b_norm, b), _normed(self.c_norm, c)
        few, b, c = (each.unflatten(0, (len(x), self.heads.count)) for each in normed)
        parts = zip(few.unbind(1), self.step.unbind(), strict=True)
        return b, c, beside([linear(each, matrix, None) for each, matrix in parts]).flatten(1)


def _normed(norm: RmsNorm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(Residual(x, None, False))[0]


class Mamba1(Recurrent):
    """Layer `index`: projections to x and its gate, a short convolution of x, the recurrence, the
    gate's SiLU, and the output projection."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: Mamba1Spec, index: int) -> None:
        self.index = index
        self.heads = OwnHeads(build, spec)
        self.channels = self.heads.channels
        parts = dict.fromkeys(("x", "gate"), spec.channels)
        if self.heads.named:
            parts = {"both": 2 * spec.channels}
        self.inputs = ColumnLinear(build.below("inputs"), parts, residual, spec.bias)
        self.convolution = Convolution(build, {"x": self.channels}, spec.width, spec.conv_bias)
        self.selection = Selection(build, spec, self.heads)
        self.decay_log = build.empty(self.channels, spec.state_dim, dtype=torch.float32)
        self.skip = build.empty(self.channels, dtype=torch.float32)
        self.output = RowLinear(build.below("output"), residual, spec.channels, spec.bias)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the numbers of this rank's channels."""
        own = self.heads.count, self.heads.size
        found = {"A_log": self.decay_log, "D": self.skip}
        return {n: self.heads.target(data.unflatten(0, own), 1) for n, data in found.items()}

    def finish(self) -> None:
        """Puts all of x before the gate."""
        if self.heads.named:
            self.inputs.reorder(by_kind(self.channels, [1, 1], self.skip.device))

    def mix(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """x [T, hidden] -> the input of `output` [T, channels], or [R, channels] of `rows`."""
        both = self.inputs.product(x)
        inputs, gate = both[:, : self.channels], both[:, self.channels :]
        mixed, out = inputs.new_empty(inputs.shape), inputs.new_empty(inputs.shape)
        self.run([inputs, mixed], context, self.convolve)
        b, c, step = self.selection(mixed)
        self.run([mixed, b, c, step, gate, out], context)
        return out if rows is None else out.index_select(0, rows)

    def convolve(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs tokens: inputs, the convolution's output."""
        inputs, mixed = tokens
        assert cache.inputs is not None
        weight, bias = self.convolution.weight[:, 0], self.convolution.bias
        causal_conv(inputs, weight, cache.inputs, runs, mixed, bias=bias)

    def recur(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs tokens: the convolution's output, B, C, steps, gates, the output."""
        x, b, c, step, gate, out = tokens
        assert cache.memory is not None
        channels = self.decay_log, self.selection.step_bias, self.skip
        channel_scan(x, b, c, step, gate, channels, cache.memory, runs, out)
