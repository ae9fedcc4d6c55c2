"""The contract between a linear layer and a weight format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

NormOperands = tuple[Tensor, Tensor | None, Tensor, float]  # x, residual, scale, eps of rms_norm


@dataclass(frozen=True)
class WeightTensor:
    """A tensor of a weight format, and which of its dimensions follow the layer's two sides.

    A dimension of None means that the tensor has none for that side (a per-output scale has no
    input dimension). A side's dimension may be shorter than the side by a whole factor (packing).
    """

    data: Tensor
    output_dim: int | None
    input_dim: int | None


class LinearMethod(Protocol):
    """A weight format. Stateless: weights are passed in, so one object serves all layers."""

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """Empty tensors for a matrix [outputs, inputs], by their suffix in checkpoint names."""

    def finish(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Repacks loaded weights for `apply`, once after loading."""

    def apply(
        self, weights: Mapping[str, Tensor], x: Tensor, bias: Tensor | None, gated: bool = False
    ) -> Tensor:
        """[T, inputs] -> [T, outputs], in x's dtype; half as many if `gated`, by act_mul."""

    def apply_normed(
        self, weights: Mapping[str, Tensor], norm: NormOperands, bias: Tensor | None, gated: bool
    ) -> tuple[Tensor, Tensor]:
        """(`apply` of the normalised sum, with act_mul behind it if `gated`; the sum).

        In as few kernels as the format has for it.
        """

    def apply_onto(
        self, weights: Mapping[str, Tensor], x: Tensor, bias: Tensor | None, residual: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """What is yet to be summed: (`apply`, residual), or (their sum, None).

        The sum where it costs nothing beside the product; it takes the residual's memory.
        """

    def dequantize(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The plain matrix [outputs, inputs] that finished weights stand for: the oracle."""
