"""EETQ checkpoints: int8 with a scale per output, in the order of its CUTLASS kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.faults import BadModel
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.methods import HEAD, Methods, kept_modules
from penstock.quant.packed import Packed, Quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain
from penstock.weights import Form

TILE = 64  # inputs of an output that are stored together, next to those of its neighbour
ROWS = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)  # inputs, as lanes hold them
BYTES = (0, 2, 1, 3)  # of a register


class Interleaved(Form):
    """Codes [outputs, inputs], stored as [inputs, outputs] whatever the order of the bytes is.

    FasterTransformer's layout of int8 weights for compute capability 7.5 to 9.0: inputs permuted in
    sixteens, two outputs interleaved by tiles of 64 inputs, bytes of a register swapped, plus 128.
    """

    dtype = torch.int8

    def shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """The matrix's transpose. Raises BadModel if there are no whole tiles."""
        outputs, inputs = shape
        if outputs % 2 or inputs % TILE:
            raise BadModel(
                f"EETQ stores pairs of outputs and {TILE} inputs together, but a layer has "
                f"{outputs} outputs and {inputs} inputs"
            )
        return [(inputs, outputs)]

    def entries(self, stored: Tensor, shape: Sequence[int], region: Sequence[slice]) -> Tensor:
        """The region's codes."""
        outputs, inputs = shape
        bytes_ = stored.reshape(-1).view(torch.uint8).view(-1, len(BYTES))[:, list(BYTES)]
        rows = bytes_.reshape(outputs // 2, inputs // TILE, 2, TILE).transpose(1, 2)
        codes = torch.empty((outputs, inputs // len(ROWS), len(ROWS)), dtype=torch.uint8)
        codes[..., list(ROWS)] = rows.reshape(codes.shape)
        return codes.view(outputs, inputs)[tuple(region)]


class Eetq(Packed):
    """int8 without zero points."""

    def __init__(self, plain: Plain) -> None:
        super().__init__(Kind.INT8, plain)

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The codes, and a scale per output."""
        codes = torch.empty((outputs, inputs), dtype=torch.uint8, device=self.plain.device)
        scales = torch.empty(outputs, dtype=torch.float32, device=self.plain.device)
        return {
            "weight": WeightTensor(codes, 0, 1, Interleaved()),
            "weight_scales": WeightTensor(scales, 0, None),
        }

    def read(self, weights: Weights) -> Quantized:
        """As they are."""
        return Quantized(weights["weight"], weights["weight_scales"][None])


def read_eetq(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "eetq"."""
    settings = Settings(config)
    settings.skip("quant_method", "modules_to_not_convert")
    settings.choice("weights", ("int8",), "int8")
    settings.done()
    return Methods(plain, Eetq(plain), HEAD, not_converted=kept_modules(config))
