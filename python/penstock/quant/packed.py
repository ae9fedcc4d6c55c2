"""Weights of 4 or 8 bits on the op packed_linear: what all formats of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from penstock_kernels import act_mul, packed_act_linear, packed_linear, packed_norm_linear
from penstock_kernels.packed_linear import Kind, PackedWeight, matrix_of, pack
from penstock_kernels.packed_linear.plan import FLOAT8_ROWS
from penstock_kernels.rms_norm import NormInput
from torch import Tensor

from penstock.quant.method import RmsScale, Weights, WeightTensor
from penstock.quant.unquantized import Plain

OUTPUT_ORDER = "output_order"  # no name of a checkpoint's tensor


class Quantized(NamedTuple):
    """A matrix [outputs, inputs] as codes, whatever a checkpoint's layout was."""

    codes: Tensor  # [outputs, inputs] uint8
    scales: Tensor  # [inputs / group, outputs], float
    zeros: Tensor | None = None  # as scales, integers in a float dtype; None: `Kind.zero`
    order: Tensor | None = None
    """[columns of codes] int: which input each column multiplies, where groups are not in order of
    inputs. Every input has a column; columns that stand for zeros may be added."""

    def with_outputs(self, order: Tensor) -> Quantized:
        """The same rows in another order."""
        zeros = None if self.zeros is None else self.zeros[:, order]
        return self._replace(codes=self.codes[order], scales=self.scales[:, order], zeros=zeros)


class Packed(ABC):
    """A weight format whose matrices become codes with a scale per group of inputs.

    A CPU has no kernel for codes. It keeps the dequantized matrix, so it computes the same numbers
    from as much memory as an unquantized model takes.
    """

    def __init__(self, kind: Kind, plain: Plain) -> None:
        """`plain` gives the model's dtype and device, and multiplies on a CPU."""
        self.kind = kind
        self.plain = plain
        self.on_cpu = plain.device.type == "cpu"
        self.recordable = self.on_cpu and plain.recordable
        self.scale_dtype = plain.dtype
        """Of the scales that are kept. A format whose scales the model's dtype would round sets
        another."""

    @abstractmethod
    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """Empty tensors for a matrix [outputs, inputs], as the checkpoint stores it."""

    @abstractmethod
    def read(self, weights: Weights) -> Quantized:
        """The matrix that loaded tensors stand for. Raises BadModel for contradicting tensors."""

    def order_outputs(self, weights: Weights, order: Tensor) -> Weights:
        """Notes the order for `finish`: loaded tensors may pack several outputs in a number."""
        return {**weights, OUTPUT_ORDER: order}

    def finish(self, weights: Weights) -> Weights:
        """Packs the codes; on a CPU, dequantizes them."""
        quantized = self.read(weights)
        if OUTPUT_ORDER in weights:
            quantized = quantized.with_outputs(weights[OUTPUT_ORDER])
        if self.on_cpu:
            return self.plain.finish({"weight": self._matrix(quantized)})
        packed = self._packed(quantized)
        finished = {"words": packed.words, "scales": packed.scales}
        # Weights are tensors. This one has no elements, and a shape that names the inputs.
        finished["inputs"] = torch.empty(packed.inputs, 0)
        if packed.zeros is not None:
            finished["zeros"] = packed.zeros
        if quantized.order is not None:
            finished["order"] = quantized.order
        return finished

    def stacked(self, weights: Weights) -> Tensor | PackedWeight:
        """Packs the codes of every expert; on a CPU, dequantizes them."""
        experts = len(next(iter(weights.values())))
        each = (
            self.read({name: tensor[index] for name, tensor in weights.items()})
            for index in range(experts)
        )
        if self.on_cpu:
            return torch.stack([self._matrix(one) for one in each])
        whole: PackedWeight | None = None
        for index, one in enumerate(each):
            packed = self._packed(one)
            whole = whole or _room(packed, experts)
            _copy(packed, whole.of_expert(index))
        assert whole is not None
        return whole

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b."""
        if self.on_cpu:
            return self.plain.apply(weights, x, bias)
        return packed_linear(ordered(weights, x), self._weight(weights), bias)

    def apply_gated(self, weights: Weights, x: Tensor) -> Tensor:
        """silu(x G^T) * (x U^T), where W = (G | U)."""
        if self.on_cpu:
            return act_mul(self.plain.apply(weights, x, None))
        return packed_linear(ordered(weights, x), self._weight(weights), gated=True)

    def gates_inputs(self, rows: int) -> bool:
        """Where float8 multiplies: rows are rounded before, and gated on the way."""
        return self.kind is Kind.FP8 and rows > FLOAT8_ROWS and not self.on_cpu

    def apply_to_gate(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """Calls the fused op, unless the columns of the codes have another order than x."""
        if self.on_cpu or "order" in weights:
            return self.apply(weights, act_mul(x), bias)
        return packed_act_linear(x, self._weight(weights), bias)

    def apply_normed(
        self,
        weights: Weights,
        x: Tensor,
        residual: Tensor | None,
        norm: RmsScale,
        bias: Tensor | None,
        gated: bool,
    ) -> tuple[Tensor, Tensor]:
        """Calls the fused op, unless the columns of the codes have another order than the norm."""
        if self.on_cpu or "order" in weights:
            x, total = NormInput(x, residual, norm.weight, norm.eps).normed()
            out = self.apply_gated(weights, x) if gated else self.apply(weights, x, bias)
            return out, total
        packed = self._weight(weights)
        return packed_norm_linear(x, residual, norm.weight, norm.eps, packed, bias, gated)

    def dequantize(self, weights: Weights) -> Tensor:
        """The matrix that finished weights stand for."""
        if self.on_cpu:
            return self.plain.dequantize(weights)
        matrix = self._weight(weights).matrix(self.plain.dtype)
        return in_order(matrix, weights.get("order"))

    def _matrix(self, quantized: Quantized) -> Tensor:
        """The matrix in the model's dtype."""
        codes, scales, zeros, order = self._rounded(quantized)
        return in_order(matrix_of(codes, scales, zeros, self.kind, self.plain.dtype), order)

    def _rounded(self, quantized: Quantized) -> Quantized:
        """With scales and zeros in the dtypes that are kept."""
        scales, zeros = quantized.scales.to(self.scale_dtype).contiguous(), quantized.zeros
        if zeros is not None:
            zeros = zeros.to(self.plain.dtype).contiguous()
        return quantized._replace(scales=scales, zeros=zeros)

    def _packed(self, quantized: Quantized) -> PackedWeight:
        codes, scales, zeros, _ = self._rounded(quantized)
        return PackedWeight(pack(codes, self.kind), scales, zeros, self.kind, codes.shape[1])

    def _weight(self, weights: Weights) -> PackedWeight:
        words, scales, zeros = weights["words"], weights["scales"], weights.get("zeros")
        return PackedWeight(words, scales, zeros, self.kind, len(weights["inputs"]))


def _room(weight: PackedWeight, experts: int) -> PackedWeight:
    """Memory for as many weights like this one."""

    def room(part: Tensor) -> Tensor:
        return part.new_empty((experts, *part.shape))

    zeros = None if weight.zeros is None else room(weight.zeros)
    return weight._replace(words=room(weight.words), scales=room(weight.scales), zeros=zeros)


def _copy(weight: PackedWeight, to: PackedWeight) -> None:
    to.words.copy_(weight.words)
    to.scales.copy_(weight.scales)
    if weight.zeros is not None and to.zeros is not None:
        to.zeros.copy_(weight.zeros)


def ordered(weights: Weights, x: Tensor) -> Tensor:
    """x [T, inputs] in the order of the columns of the codes."""
    order = weights.get("order")
    return x if order is None else x.index_select(1, order)


def in_order(matrix: Tensor, order: Tensor | None) -> Tensor:
    """A matrix whose columns have an order, with its columns in order of the inputs."""
    if order is None:
        return matrix
    found = matrix.new_zeros(len(matrix), int(order.max()) + 1)
    return found.index_add_(1, order, matrix)
