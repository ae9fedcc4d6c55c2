"""Quantization while loading: round to nearest, with a scale per group of inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.faults import BadModel
from penstock.quant.grid import Grid, round_to_nearest
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.packed import Packed, Quantized
from penstock.quant.unquantized import Plain

log = logging.getLogger("penstock.worker")

CHUNK = 1 << 24
"""Weights that are rounded at once, in several float32 copies: 64 MiB each, where a gate and up
matrix of a 70B model has 470 million weights."""


class RoundToNearest(Packed):
    """Reads a checkpoint's floats, and rounds each to the nearest code of its group."""

    def __init__(
        self,
        kind: Kind,
        plain: Plain,
        group: int = 128,
        symmetric: bool = False,
        search: bool = False,
    ) -> None:
        """`group`: inputs that share a scale, or half or a quarter of it where that divides a
        layer's inputs and `group` does not; 0: all of a row. `symmetric`: no zero points. `search`:
        groups of integers with zero points cover the range that has the least error."""
        super().__init__(kind, plain)
        self.group = group
        self.symmetric = symmetric
        self.search = search
        self.name = f"{kind.value}-mse" if search else kind.value
        if kind is Kind.FP8:
            self.scale_dtype = torch.float32  # as products of float8 take it

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
            return by_rows(matrix, partial(symmetric, kind=self.kind))
        group = self._group(matrix.shape[1])
        if self.kind.integer:
            grid = Grid(self.kind.bits, False, matrix.dtype, least_scale=1e-20, search=self.search)
            return by_rows(matrix, partial(round_to_nearest, grid=grid, group=group))
        return by_rows(matrix, partial(float_codes, kind=self.kind, group=group))

    def _group(self, inputs: int) -> int:
        """Inputs that share a scale in a layer; 0 = all."""
        sizes = [self.group // part for part in (1, 2, 4)]
        for size in sizes:
            if not size or inputs % size == 0:
                if size != self.group:
                    _report_group(self.name, size, inputs)
                return size
        raise BadModel(
            f"--quantize {self.name} needs groups of {', '.join(map(str, sizes))} inputs, "
            f"but a layer (of this rank) has {inputs} inputs; use fewer ranks or another format"
        )


@cache  # once per size
def _report_group(name: str, group: int, inputs: int) -> None:
    log.warning(
        "--quantize %s: layers of %d inputs get groups of %d: larger ones do not divide them",
        name,
        inputs,
        group,
    )


def by_rows(matrix: Tensor, rounded: Callable[[Tensor], Quantized]) -> Quantized:
    """What `rounded` makes of a matrix whose rows it rounds on their own, CHUNK weights at most (or
    one row) at a time."""
    codes = torch.empty(matrix.shape, dtype=torch.uint8, device=matrix.device)
    scales, zeros = [], []
    rows = max(1, CHUNK // max(1, matrix.shape[1]))
    for part, place in zip(matrix.split(rows), codes.split(rows), strict=True):
        found = rounded(part)
        place.copy_(found.codes)
        scales.append(found.scales)
        if found.zeros is not None:
            zeros.append(found.zeros)
    return Quantized(codes, torch.cat(scales, 1), torch.cat(zeros, 1) if zeros else None)


def symmetric(matrix: Tensor, kind: Kind) -> Quantized:
    """Integer codes of a matrix [outputs, inputs] with a scale per row and no zero points."""
    most = kind.zero - 1
    rows = matrix.float()
    scales = (rows.abs().amax(1, keepdim=True) / most).to(matrix.dtype).float().clamp(min=1e-20)
    codes = (rows / scales).round().clamp(-most, most) + kind.zero
    return Quantized(codes.to(torch.uint8), scales.t().contiguous())


def float_codes(matrix: Tensor, kind: Kind, group: int) -> Quantized:
    """Float codes of a matrix [outputs, inputs]: a group's largest magnitude is the largest number
    of the kind."""
    outputs, inputs = matrix.shape
    groups = matrix.float().view(outputs, -1, group or inputs)
    largest = float(kind.values(torch.tensor([0x7E if kind is Kind.FP8 else 7])).item())
    kept = torch.float32 if kind is Kind.FP8 else matrix.dtype
    scales = (groups.abs().amax(-1) / largest).to(kept).float().clamp(min=1e-20)
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
