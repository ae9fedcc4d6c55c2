"""Groups of compressed-tensors whose weights are integers: w4a16, w8a16, and w8a8 in int8.

Activations stay in the model's dtype, also where the checkpoint was made for int8 activations:
that is more exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.quant.fp8 import PER_TENSOR, static_activations
from penstock.quant.gptq import quantized
from penstock.quant.groups import Grouping, sorted_by_group
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.packed import Packed, Quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain
from penstock.quant.words import check_packing, unpacked


@dataclass(frozen=True)
class IntLayout:
    """How a checkpoint stores integers."""

    bits: int
    grouping: Grouping
    words: bool
    """Whether words hold codes (pack-quantized), or bytes hold signed integers."""
    zero_points: bool = False
    per_tensor: bool = False
    """Whether all of a matrix has one scale."""
    static_activations: bool = False
    """Whether there is a scale of the activations, which is not used."""


class Ints(Packed):
    """Integers along the inputs, scales [outputs, groups]."""

    def __init__(self, plain: Plain, layout: IntLayout) -> None:
        super().__init__(Kind.INT4 if layout.bits == 4 else Kind.INT8, plain)
        self.layout = layout

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The matrix, its scales, zero points, and the groups of the inputs, if they have any."""
        return self.allocate_share(outputs, inputs, 1)

    def allocate_share(self, outputs: int, inputs: int, ranks: int) -> dict[str, WeightTensor]:
        """Likewise, of inputs that ranks share."""
        layout = self.layout
        pack = 32 // layout.bits if layout.words else 1
        numbers = torch.int32 if layout.words else torch.int8
        check_packing(pack, inputs=inputs)
        groups = layout.grouping.of(inputs, ranks)

        def empty(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
            return torch.empty((rows, columns), dtype=dtype, device=self.plain.device)

        weight = WeightTensor(empty(outputs, inputs // pack, numbers), 0, 1)
        scales = empty(outputs, groups.count, torch.float32)
        found = {
            "weight_packed" if layout.words else "weight": weight,
            "weight_scale": groups.tensor(scales, 0),
        }
        if layout.per_tensor:
            found["weight_scale"] = WeightTensor(scales, 0, None, PER_TENSOR)
        if layout.zero_points:
            check_packing(pack, outputs=outputs)
            zeros = empty(outputs // pack, groups.count, numbers)
            found["weight_zero_point"] = groups.tensor(zeros, 0)
        if layout.grouping.any_order:
            found["weight_g_idx"] = layout.grouping.index(inputs, self.plain.device)
        if layout.static_activations:
            one = empty(outputs, 1, torch.float32)
            found["input_scale"] = WeightTensor(one, 0, None, PER_TENSOR)
        return found

    def read(self, weights: Weights) -> Quantized:
        """Codes are integers plus half their range."""
        layout, scales = self.layout, weights["weight_scale"].t()
        codes = self._codes(weights["weight_packed" if layout.words else "weight"], 1)
        found = Quantized(codes, scales)
        if layout.zero_points:
            zeros = self._codes(weights["weight_zero_point"], 0).t()
            found = quantized(codes, scales, zeros, self.kind)
        if not layout.grouping.any_order:
            return found
        return sorted_by_group(found, weights["weight_g_idx"].long(), self.kind)

    def _codes(self, stored: Tensor, dim: int) -> Tensor:
        if self.layout.words:
            return unpacked(stored, self.layout.bits, dim)
        return stored.view(torch.uint8) ^ 0x80


def read_pack_quantized(group: Settings, plain: Plain) -> Ints:
    """A group of "pack-quantized": int4 or int8 in words."""
    return Ints(plain, _layout(group, (4, 8), words=True))


def read_int_quantized(group: Settings, plain: Plain) -> Ints:
    """A group of "int-quantized": int8."""
    return Ints(plain, _layout(group, (8,), words=False))


def _layout(group: Settings, bits: tuple[int, ...], words: bool) -> IntLayout:
    group.skip("targets", "format")
    weights = group.below("weights")
    weights.choice("type", ("int",))
    found = weights.choice("num_bits", bits)
    symmetric = weights.choice("symmetric", (True, False), True)
    weights.choice("dynamic", (False,), False)
    strategies = ("channel", "group") if words else ("channel", "group", "tensor")
    strategy = weights.choice("strategy", strategies)
    # weight and static: found with the activations in mind, stored in order of the inputs.
    orders = ("group", "dynamic", "weight", "static", False)
    order = weights.choice("actorder", orders, False)
    grouping = Grouping(0)
    if strategy == "group":
        grouping = Grouping.read(weights, "group_size", order in ("group", "dynamic"))
    # How scales were found, and dtypes that the stored tensors have anyway.
    weights.skip("observer", "observer_kwargs", "scale_dtype", "zp_dtype", "group_size")
    weights.done()
    if strategy == "tensor" and not symmetric:
        raise weights.error("symmetric False is not supported with strategy 'tensor'")
    return IntLayout(
        found,
        grouping,
        words,
        zero_points=not symmetric,
        per_tensor=strategy == "tensor",
        static_activations=static_activations(group),
    )
