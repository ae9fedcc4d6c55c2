"""Feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from penstock_kernels import act_mul
from penstock_kernels.expert_mlp.experts import LIMIT, SILU_LIMIT
from torch import Tensor

from penstock.config import Activation, MlpSpec, ResidualSpec
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.norm import Norm
from penstock.layers.xielu import Xielu


class GatedMlp(Layer):
    """down(act(gate(x)) * up(x)) (GLU variants, arXiv:2002.05202), gate and up fused."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MlpSpec) -> None:
        parts, size = {"gate": spec.intermediate, "up": spec.intermediate}, spec.intermediate
        below, gate = build.below("gate_up"), spec.activation
        self.gate_up = ColumnLinear(below, parts, residual, spec.bias, gate)
        self.down = RowLinear(build.below("down"), residual, size, spec.bias)
        same = self.gate_up.gated and self.gate_up.method is self.down.method
        self.late_gate = self.down.gates_inputs if same else None

    def __call__(self, norm: Norm, residual: Residual) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the layer."""
        late = self._gates_late(residual.x)
        x, total = self.gate_up(norm, residual, open_gate=late)
        return self.down(x, total, open_gate=late)

    def product(self, x: Tensor) -> Tensor:
        """Returns the output for a normalised x, both [T, hidden]; a partial sum with several
        ranks."""
        late = self._gates_late(x)
        return self.down.product(self.gate_up.product(x, late), late)

    def _gates_late(self, x: Tensor) -> bool:
        """Whether the second product applies the gate, not the first."""
        return self.late_gate is not None and self.late_gate.gates_inputs(len(x))


class ScaledMlp(GatedMlp):
    """As GatedMlp, with factors of the gate and of the output, and a bound of gates, activated or
    not, and of ups."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MlpSpec) -> None:
        parts = {"gate": spec.intermediate, "up": spec.intermediate}
        self.gate_up = ColumnLinear(build.below("gate_up"), parts, residual, spec.bias)
        scaled = replace(residual, multiplier=residual.multiplier * spec.output_scale)
        self.down = RowLinear(build.below("down"), scaled, spec.intermediate, spec.bias)
        self.scale, self.activation = spec.gate_scale, spec.activation.value
        self.limit = LIMITS.get(spec.activation, spec.limit)

    def __call__(self, norm: Norm, residual: Residual) -> Residual:
        """As GatedMlp."""
        x, total = self.gate_up(norm, residual)
        return self.down(self._gated(x), total)

    def product(self, x: Tensor) -> Tensor:
        """As GatedMlp."""
        return self.down.product(self._gated(self.gate_up.product(x)))

    def _gated(self, x: Tensor) -> Tensor:
        if self.scale != 1:
            x[:, : x.shape[1] // 2].mul_(self.scale)
        return act_mul(x, self.activation, self.limit)


class SparseMlp(ScaledMlp):
    """As ScaledMlp, but of the gates counts what exceeds a threshold, which removes a share of
    normally distributed ones."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MlpSpec) -> None:
        super().__init__(build, residual, spec)
        self.group, self.count = build.group, spec.intermediate
        share = torch.tensor(spec.sparsity, dtype=torch.float32)
        self.deviations = float(torch.special.ndtri(share))

    def _gated(self, x: Tensor) -> Tensor:
        gates = x[:, : x.shape[1] // 2]
        wide = gates.to(torch.promote_types(x.dtype, torch.float32))
        above = wide - self._mean(wide)
        deviation = self._mean(above.square()).sqrt()
        gates.copy_(F.relu(above - self.deviations * deviation))
        return super()._gated(x)

    def _mean(self, x: Tensor) -> Tensor:
        """Of the rows' elements on all ranks: [T, inner of this rank] -> [T, 1]."""
        return self.group.summed(x.sum(-1, keepdim=True)) / self.count


class Mlp(Layer):
    """down(act(up(x)))."""

    def __init__(self, build: Build, residual: ResidualSpec, spec: MlpSpec) -> None:
        parts = {"up": spec.intermediate}
        self.inner = ColumnLinear(build.below("inner"), parts, residual, spec.bias)
        self.down = RowLinear(build.below("down"), residual, spec.intermediate, spec.bias)
        learned = spec.activation is Activation.XIELU
        self.activate = Xielu(build) if learned else ACTIVATIONS[spec.activation]

    def __call__(self, norm: Norm, residual: Residual) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the layer."""
        x, total = self.inner(norm, residual)
        return self.down(self.activate(x), total)

    def product(self, x: Tensor) -> Tensor:
        """Returns the output for a normalised x, both [T, hidden]; a partial sum with several
        ranks."""
        return self.down.product(self.activate(self.inner.product(x)))


def dense_mlp(build: Build, residual: ResidualSpec, spec: MlpSpec) -> GatedMlp | Mlp:
    """Builds the feed-forward layer of a specification."""
    if spec.sparsity:
        return SparseMlp(build, residual, spec)
    plain = (spec.gate_scale, spec.output_scale, spec.limit) == (1, 1, 0)
    if not plain or spec.activation in LIMITS:
        return ScaledMlp(build, residual, spec)
    return (GatedMlp if spec.gated else Mlp)(build, residual, spec)


LIMITS = {Activation.LIMITED_SILU: SILU_LIMIT, Activation.CLAMPED_SWIGLU: LIMIT}
"""Bounds of gates and ups that activations have."""

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SILU: F.silu,
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
    Activation.RELU: F.relu,
    Activation.RELU_SQUARED: lambda x: F.relu(x).square(),
}
