"""Gated linear recurrences (RG-LRU of Griffin, arXiv:2402.19427): a number per channel that decays.

Ranks share the blocks of channels whose gates are products of a block alone, and with them the
states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from penstock_kernels import causal_conv, rg_lru
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.config import ResidualSpec, RgLruSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.recurrent import Convolution, Recurrent
from penstock.parallel import Group
from penstock.weights import Target

POWER = 8  # of a decay by a gate that is 1


class BlockGates(Layer):
    """Gates of what is added to a state and of what is kept of it, products of a block of channels.

    The matrices are floats whatever the checkpoint's format is: a decay acts on all that follows.
    """

    def __init__(self, build: Build, spec: RgLruSpec) -> None:
        self.group: Group = build.group
        heads, size = self.group.share(spec.heads, spec.shared[0]), spec.channels // spec.heads
        self.weight = build.empty(heads, size, 2, size)
        wide = torch.promote_types(build.dtype, torch.float32)
        self.biases = build.empty(heads, 2, size, dtype=wide)
        self.rate = build.empty(heads * size, dtype=wide)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of this rank's blocks."""
        found = {"recurrent_param": self.rate}
        for part, name in enumerate(("input_gate", "recurrent_gate")):
            found[f"{name}_weight"] = self.weight[:, :, part]
            found[f"{name}_bias"] = self.biases[:, part]
        rank, size = self.group.rank, self.group.size
        return {name: Target.share(data, 0, rank, size) for name, data in found.items()}

    def finish(self) -> None:
        """Makes what is stored the most that a token subtracts from the logarithm of a state."""
        self.rate.copy_(POWER * F.softplus(self.rate))

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, this rank's channels] -> [T, blocks, 2, channels of a block], without biases."""
        heads, size, _, _ = self.weight.shape
        out = x.new_empty(len(x), heads, 2 * size)
        by_block = x.view(len(x), heads, size).transpose(0, 1)
        torch.bmm(by_block, self.weight.flatten(2), out=out.transpose(0, 1))
        return out.view(len(x), heads, 2, size)


class RgLru(Recurrent):
    """Layer `index`: projections to x and to what GELU makes a factor of the output, a short
    convolution of x, its gates, the recurrence, and the output projection."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: RgLruSpec, index: int) -> None:
        self.index = index
        self.channels = spec.channels // build.group.size
        parts = dict.fromkeys(("x", "beside"), spec.channels)
        self.inputs = ColumnLinear(build.below("inputs"), parts, residual, bias=True)
        self.convolution = Convolution(build, {"x": self.channels}, spec.width, bias=True)
        self.gates = BlockGates(build, spec)
        self.output = RowLinear(build.below("output"), residual, spec.channels, bias=True)

    def mix(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """x [T, hidden] -> the input of `output` [T, channels], or [R, channels] of `rows`."""
        both = self.inputs.product(x)
        inputs, beside = both[:, : self.channels], both[:, self.channels :]
        mixed, out = inputs.new_empty(inputs.shape), inputs.new_empty(inputs.shape)
        self.run([inputs, mixed], context, self.convolve)
        self.run([mixed, self.gates(mixed), beside, out], context)
        return out if rows is None else out.index_select(0, rows)

    def convolve(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs tokens: inputs, the convolution's output."""
        inputs, mixed = tokens
        assert cache.inputs is not None
        weight, bias = self.convolution.weight[:, 0], self.convolution.bias
        causal_conv(inputs, weight, cache.inputs, runs, mixed, bias=bias, silu=False)

    def recur(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs tokens: the convolution's output, gates, factors before GELU, the output."""
        x, gates, beside, out = tokens
        assert cache.memory is not None
        channels = self.gates.rate, self.gates.biases
        rg_lru(x, gates, beside, channels, cache.memory, runs, out)
