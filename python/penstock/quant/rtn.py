"""Quantization while loading: round to nearest, with a scale per group of inputs."""

from __future__ import annotations

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.faults import BadModel
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.packed import Packed, Quantized
from penstock.quant.unquantized import Plain


class RoundToNearest(Packed):
    """Reads a checkpoint's floats, and rounds each to the nearest code of its group."""

    def __init__(self, kind: Kind, plain: Plain, group: int = 128) -> None:
        """`group`: inputs that share a scale; 0: all of a row."""
        super().__init__(kind, plain)
        self.group = group

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The matrix of floats. Raises BadModel if groups do not divide the inputs."""
        if self.group and inputs % self.group:
            raise BadModel(
                f"--quantize {self.kind.value} needs groups of {self.group} inputs, but a layer "
                f"(of this rank) has {inputs} inputs; use fewer ranks or another format"
            )
        return self.plain.allocate(outputs, inputs)

    def read(self, weights: Weights) -> Quantized:
        """The nearest codes."""
        return round_to_nearest(weights["weight"], self.kind, self.group)


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
        _nearest(groups / scales[..., None], kind).view(outputs, inputs), scales.t().contiguous()
    )


def _nearest(values: Tensor, kind: Kind) -> Tensor:
    if kind is Kind.FP8:
        return values.to(torch.float8_e4m3fn).view(torch.uint8)
    steps = kind.values(torch.arange(8, dtype=torch.uint8, device=values.device))
    middles = (steps[1:] + steps[:-1]) / 2
    codes = torch.bucketize(values.abs().contiguous(), middles)
    return (codes | torch.where(values < 0, 8, 0)).to(torch.uint8)
