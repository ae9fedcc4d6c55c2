"""Mamba-2 (arXiv:2405.21060): a state per head that decays and adds each token.

Ranks share the heads, and the groups of B and C. With more ranks than groups, several have the same
group; a norm over such a group adds up its squares over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from penstock_kernels import causal_conv, gated_head_norm, selective_scan
from penstock_kernels.recurrence import Runs
from torch import Tensor
from torch.nn.functional import silu

from penstock.cache import StateCache
from penstock.config import Mamba2Spec, NormSpec, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.recurrent import Convolution, Recurrent
from penstock.weights import Target


class GroupNorm(Layer):
    """The root-mean-square norm of x times SiLU of its gate, in groups of channels; or of x, before
    the gate."""

    def __init__(self, build: Build, spec: Mamba2Spec, norm: NormSpec) -> None:
        self.group = build.group
        self.share = build.group.kv_share(spec.groups)
        self.groups = spec.groups
        self.size = spec.heads * spec.head_dim // spec.groups
        self.eps, self.gate_first = norm.eps, spec.gate_first
        self.weight = build.empty(spec.heads * spec.head_dim // build.group.size)

    def targets(self) -> dict[str, Target]:
        """Returns the target of the weights of this rank's channels."""
        return {"weight": Target.share(self.weight, 0, self.group.rank, self.group.size)}

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        """x and gate [T, this rank's channels] -> [T, this rank's channels]."""
        if self.share == self.group.own:
            x, gate = (each.unflatten(1, (-1, self.size)) for each in (x, gate))
            weight = self.weight.view(-1, self.size)
            return gated_head_norm(x, gate, weight, self.eps, self.gate_first).flatten(1)
        dtype = torch.promote_types(x.dtype, torch.float32)
        gate, wide = silu(gate.to(dtype)), x.to(dtype)
        normed = wide * gate if self.gate_first else wide
        squares = normed.new_zeros(len(x), self.groups)
        squares[:, self.share.index] = normed.square().sum(1)
        mean = self.group.summed(squares)[:, self.share.index, None] / self.size
        return (wide * gate * torch.rsqrt(mean + self.eps) * self.weight).to(x.dtype)


class Mamba2(Recurrent):
    """Layer `index`: projections, a short convolution of x, B and C, the recurrence, a gated norm
    or a gate, and the output projection."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: Mamba2Spec, index: int) -> None:
        self.index = index
        self.group = build.group
        self.limits = spec.step_limits
        self.heads = build.group.share(spec.heads, spec.shared[0])
        share = build.group.kv_share(spec.groups)
        self.groups = spec.groups // share.count
        inner, both = spec.heads * spec.head_dim, spec.groups * spec.state_dim
        parts = {"gate": inner, "x": inner, "b": both, "c": both, "step": spec.heads}
        shares = {"b": share, "c": share}
        self.inputs = ColumnLinear(build.below("inputs"), parts, residual, spec.bias, shares=shares)
        channels = {name: self.inputs.parts[name] for name in ("x", "b", "c")}
        self.sizes = list(channels.values())
        self.convolution = Convolution(build, channels, spec.width, spec.conv_bias, shares)
        self.decay_log = build.empty(self.heads, dtype=torch.float32)
        self.step_bias = build.empty(self.heads, dtype=torch.float32)
        self.skip = build.empty(self.heads, dtype=torch.float32)
        self.norm = None if spec.norm is None else GroupNorm(build, spec, spec.norm)
        self.factors: Tensor | None = None
        if spec.factors:
            dtype = torch.promote_types(build.dtype, torch.float32)
            factors = torch.tensor(spec.factors, dtype=dtype, device=build.device)
            sizes = torch.tensor(list(self.inputs.parts.values()), device=build.device)
            self.factors = factors.repeat_interleave(sizes, output_size=self.inputs.outputs)
        self.output = RowLinear(build.below("output"), residual, inner, spec.bias)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the numbers of this rank's heads."""
        found = {"A_log": self.decay_log, "dt_bias": self.step_bias, "D": self.skip}
        rank, size = self.group.rank, self.group.size
        return {name: Target.share(data, 0, rank, size) for name, data in found.items()}

    def mix(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """x [T, hidden] -> the input of `output` [T, channels], or [R, channels] of `rows`."""
        inputs = self.inputs.product(x)
        if self.factors is not None:
            inputs = inputs.mul_(self.factors)
        inner, step = self.sizes[0], inputs[:, -self.heads :]
        gate, inputs = inputs[:, :inner], inputs[:, inner : -self.heads]
        mixed = inputs.new_empty(inputs.shape)
        out = inputs.new_empty((len(inputs), self.heads, inner // self.heads))
        self.run([inputs, step, mixed, out], context)
        out = out.flatten(1)
        if rows is not None:
            out, gate = out.index_select(0, rows), gate.index_select(0, rows)
        return out.mul_(silu(gate)) if self.norm is None else self.norm(out, gate)

    def recur(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs tokens: inputs, steps, the convolution's output, the output."""
        inputs, step, mixed, out = tokens
        assert cache.inputs is not None and cache.memory is not None
        weight, bias = self.convolution.weight[:, 0], self.convolution.bias
        causal_conv(inputs, weight, cache.inputs, runs, mixed, bias=bias)
        x, b, c = mixed.split(self.sizes, 1)
        b, c = (each.unflatten(1, (self.groups, -1)) for each in (b, c))
        heads = self.decay_log, self.step_bias, self.skip
        x = x.unflatten(1, (self.heads, -1))
        selective_scan(x, b, c, step, heads, cache.memory, runs, self.limits, out)
