"""Quantization while loading: round to nearest, with a scale per group of inputs."""

from __future__ import annotations

import logging
from functools import cache

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.faults import BadModel
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.packed import Packed, Quantized
from penstock.quant.unquantized import Plain

log = logging.getLogger("penstock.worker")


class RoundToNearest(Packed):
    """Reads a checkpoint's floats, and rounds each to the nearest code of its group."""

    def __init__(self, kind: Kind, plain: Plain, group: int = 128, symmetric: bool = False) -> None:
        """`group`: inputs that share a scale, or half or a quarter of it where that divides a
        layer's inputs and `group` does not; 0: all of a row. `symmetric`: no zero points."""
        super().__init__(kind, plain)
        self.group = group
        self.symmetric = symmetric

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The matrix of floats, on the meta device. Raises BadModel if no group divides the inputs.

        All floats of a model may need more memory than the device has.
        """
        self._group(inputs)
        data = torch.empty((outputs, inputs), dtype=self.plain.dtype, device="meta")
        return {"weight": WeightTensor(data, 0, 1)}

    def read(self, weights: Weights) -> Quantized:
        """The nearest codes."""
        matrix = weights["weight"]
        if self.symmetric:
            return symmetric(matrix, self.kind)
        return round_to_nearest(matrix, self.kind, self._group(matrix.shape[1]))

    def _group(self, inputs: int) -> int:
        """Inputs that share a scale in a layer; 0 = all."""
        sizes = [self.group // part for part in (1, 2, 4)]
        for size in sizes:
            if not size or inputs % size == 0:
                if size != self.group:
                    _report_group(self.kind, size, inputs)
                return size
        raise BadModel(
            f"--quantize {self.kind.value} needs groups of {', '.join(map(str, sizes))} inputs, "
            f"but a layer (of this rank) has {inputs} inputs; use fewer ranks or another format"
        )


@cache  # once per size
def _report_group(kind: Kind, group: int, inputs: int) -> None:
    log.warning(
        "--quantize %s: layers of %d inputs get groups of %d: larger ones do not divide them",
        kind.value,
        inputs,
        group,
    )


def symmetric(matrix: Tensor, kind: Kind) -> Quantized:
    """Integer codes of a matrix [outputs, inputs] with a scale per row and no zero points."""
    most = kind.zero - 1
    rows = matrix.float()
    scales = (rows.abs().amax(1, keepdim=True) / most).to(matrix.dtype).float().clamp(min=1e-20)
    codes = (rows / scales).round().clamp(-most, most) + kind.zero
    return Quantized(codes.to(torch.uint8), scales.t().contiguous())


def round_to_nearest(matrix: Tensor, kind: Kind, group: int) -> Quantized:
    """Codes of a matrix [outputs, inputs]; integers get zero points, floats none.

    With zero points a group's range is [min, max], widened to hold 0; without, its largest
    magnitude is the largest number of the kind.
    """
    outputs, inputs = matrix.shape
    groups = matrix.float().view(outputs, -1, group or inputs)
    if kind.integer:
        most = (1 << kind.bits) - 1
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scales = ((high - low) / most).to(matrix.dtype).float().clamp(min=1e-20)
        zeros = (-low / scales).round().clamp(0, most)
        codes = (groups / scales[..., None] + zeros[..., None]).round().clamp(0, most)
        codes = codes.to(torch.uint8).view(outputs, inputs)
        return Quantized(codes, scales.t().contiguous(), zeros.t().contiguous())
    largest = float(kind.values(torch.tensor([0x7E if kind is Kind.FP8 else 7])).item())
    scales = (groups.abs().amax(-1) / largest).to(matrix.dtype).float().clamp(min=1e-20)
    return Quantized(
        nearest(groups / scales[..., None], kind).view(outputs, inputs), scales.t().contiguous()
    )


def nearest(values: Tensor, kind: Kind) -> Tensor:
    """Codes uint8 of the float numbers of a kind that are nearest to values, in any shape."""
    if kind is Kind.FP8:
        return values.to(torch.float8_e4m3fn).view(torch.uint8)
    steps = kind.values(torch.arange(8, dtype=torch.uint8, device=values.device))
    middles = (steps[1:] + steps[:-1]) / 2
    codes = torch.bucketize(values.abs().contiguous(), middles)
    return (codes | torch.where(values < 0, 8, 0)).to(torch.uint8)
