"""The contract between a linear layer and a weight format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from penstock_kernels.packed_linear import PackedWeight
from torch import Tensor

from penstock.weights import Form, Target

Weights: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True)
class WeightTensor:
    """A tensor of a weight format, and its dimensions for the layer's inputs and outputs.

    A dimension of None means that the tensor has none for that side (a per-output scale has no
    input dimension). A side's dimension may be shorter than the side by a whole factor (packing).
    Where a checkpoint stores an entry per block, `data` has an entry for each output of the block,
    and as many per row as the shares of any rank need: so ranks and fused parts may cut blocks.
    """

    data: Tensor
    """On the meta device, if the memory of all layers at once would be too much: it is allocated
    when the layer is loaded, and `LinearMethod.finish` follows before the next layer's."""
    output_dim: int | None
    input_dim: int | None
    form: Form | None = None
    """How a checkpoint stores the tensor; None = entry by entry, in the shape of `data`."""
    suffixes: tuple[str, ...] = ()
    """Its suffix in checkpoints, the most common one first; () = as in `allocate`."""
    output_tile: int = 1
    """Outputs whose numbers are permuted together: no part of a fused matrix may cut them."""

    def fill(self, target: Target) -> Target:
        """A target of this tensor's data, with the form in which checkpoints store it."""
        return replace(target, form=self.form, suffixes=self.suffixes)

    def allocated(self, device: torch.device) -> WeightTensor:
        """This tensor with memory on the device, if it has none yet."""
        if not self.data.is_meta:
            return self
        return replace(self, data=torch.empty_like(self.data, device=device))


class LinearMethod(Protocol):
    """A weight format. Stateless: weights are passed in, so one object serves all layers."""

    recordable: bool
    """Whether a tape can hold `apply`, so that small steps on a CPU replay as one call."""

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """Allocates the tensors of a matrix [outputs, inputs], by their suffix in checkpoint names.

        The checkpoint must store the same dtypes; only float dtypes are converted to each other.
        """

    def finish(self, weights: Weights) -> Weights:
        """Repacks loaded weights for `apply`, once after loading."""

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """[T, inputs] -> [T, outputs], in x's dtype."""

    def dequantize(self, weights: Weights) -> Tensor:
        """Returns the matrix [outputs, inputs] that finished weights represent, for tests."""


# Optional fused products of a method. A layer checks with isinstance when it is built.


@runtime_checkable
class OrdersOutputs(Protocol):
    """Puts the outputs of packed weights in another order."""

    def order_outputs(self, weights: Weights, order: Tensor) -> Weights:
        """Loaded weights from which `finish` makes a matrix with its outputs in this order."""


@runtime_checkable
class CutsInputs(Protocol):
    """Allocates otherwise where ranks share a layer's inputs."""

    def allocate_share(self, outputs: int, inputs: int, ranks: int) -> dict[str, WeightTensor]:
        """As `LinearMethod.allocate`, of `inputs` on each of `ranks` ranks."""


class RmsScale(Protocol):
    """Scale and eps of an RMSNorm."""

    weight: Tensor  # [inputs]
    eps: float


@runtime_checkable
class FusesNorm(Protocol):
    """Normalises and multiplies in one op."""

    def apply_normed(
        self,
        weights: Weights,
        x: Tensor,
        residual: Tensor | None,
        norm: RmsScale,
        bias: Tensor | None,
        gated: bool,
    ) -> tuple[Tensor, Tensor]:
        """Returns (`apply` of the normalised sum of x and residual [T, outputs], the sum [T,
        inputs]).

        `gated` multiplies as `apply_gated`; only for methods with FusesGate and without a bias.
        """


@runtime_checkable
class FusesGate(Protocol):
    """Multiplies by gate and up, and applies a SiLU gate, in one op."""

    def apply_gated(self, weights: Weights, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, outputs / 2]: silu(first half of `apply`) * second half."""


@runtime_checkable
class GatesInputs(Protocol):
    """Applies a SiLU gate and multiplies by what it lets through, in one op."""

    def gates_inputs(self, rows: int) -> bool:
        """Whether it takes this number of rows less time than `FusesGate` before it."""

    def apply_to_gate(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """`apply` of silu(first half of x) * second half; x is [T, 2 * inputs]."""


@runtime_checkable
class FusesResidual(Protocol):
    """Adds the product to the residual stream in the same op."""

    def apply_onto(
        self, weights: Weights, x: Tensor, bias: Tensor | None, residual: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Returns (`apply`, residual), or (their sum, None) if the op adds them.

        The sum overwrites the residual's memory.
        """


@runtime_checkable
class StacksExperts(Protocol):
    """Keeps one matrix of many experts as a weight of the op `expert_mlp`."""

    def stacked(self, weights: Weights) -> Tensor | PackedWeight:
        """The weight of loaded tensors: those of `allocate`, with a leading dimension of experts.

        Called in place of `finish`, once after loading.
        """
