"""Checkpoints in Marlin's first layout (arXiv:2408.11743): symmetric int4, tiled for its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.quant.groups import Grouping
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.methods import HEAD, Methods
from penstock.quant.packed import Packed, Quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain
from penstock.quant.words import check_packing, unpacked

TILE = 16  # inputs and outputs of a tile
OUTPUTS = 64  # of the four tiles whose codes are permuted together


class Marlin(Packed):
    """B [inputs / 16, 2 outputs] of words, s [groups, outputs]: no zero points."""

    def __init__(self, plain: Plain, grouping: Grouping) -> None:
        super().__init__(Kind.INT4, plain)
        self.grouping = grouping

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """Of whole tiles. Raises BadModel where the sides have none."""
        device = self.plain.device
        check_packing(OUTPUTS, outputs=outputs)
        check_packing(TILE, inputs=inputs)
        groups = self.grouping.of(inputs, 1)
        words = torch.empty((inputs // TILE, 2 * outputs), dtype=torch.int32, device=device)
        scales = torch.empty((groups.count, outputs), dtype=torch.float32, device=device)
        tiles = WeightTensor(words, 1, 0, output_tile=OUTPUTS)
        return {"B": tiles, "s": groups.tensor(scales, 1)}

    def read(self, weights: Weights) -> Quantized:
        """Undoes the permutations."""
        words, scales = weights["B"], weights["s"]
        rows, outputs = words.shape[0], scales.shape[1]
        tiles = unpacked(words, 4, 1).view(-1, OUTPUTS * TILE)
        codes = _placed(tiles, _code_order(words.device)).view(rows, outputs // TILE, TILE, TILE)
        codes = codes.transpose(1, 2).reshape(rows * TILE, outputs).t()
        order = _scale_order(bool(self.grouping.size), words.device)
        scales = _placed(scales.reshape(-1, len(order)), order).view(scales.shape)
        return Quantized(codes, scales)


def _placed(stored: Tensor, order: Tensor) -> Tensor:
    """The columns at the places from which the writer took them."""
    return torch.empty_like(stored).index_copy_(1, order, stored)


def _code_order(device: torch.device) -> Tensor:
    """Where the codes of four tiles of 16 x 16 come from: a lane of the tensor core has 8 of each.

    From the slowest on: lane's column, lane's row, tile, then within 8 codes: column, row; the
    fields of a word take them in the order 0 2 4 6 1 3 5 7.
    """
    column, pair = torch.arange(8).view(8, 1, 1, 1, 1, 1), torch.arange(4).view(1, 4, 1, 1, 1, 1)
    tile, half = torch.arange(4).view(1, 1, 4, 1, 1, 1), torch.arange(2).view(1, 1, 1, 2, 1, 1)
    upper, odd = torch.arange(2).view(1, 1, 1, 1, 2, 1), torch.arange(2).view(1, 1, 1, 1, 1, 2)
    row = 2 * pair + odd + 8 * upper
    places = (256 * tile + 16 * row + column + 8 * half).reshape(-1, 8)
    return places[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1).to(device)


def _scale_order(grouped: bool, device: torch.device) -> Tensor:
    """Where the scales of 64 outputs, or of 32 if rows have one scale, come from."""
    if grouped:
        order = torch.arange(64).view(8, 8).t()
    else:
        order = 2 * torch.arange(4).view(4, 1, 1) + torch.tensor([[0, 1]])
        order = order + 8 * torch.arange(4).view(4, 1)
    return order.reshape(-1).to(device)


def marlin_methods(settings: Settings, method: Marlin, bits: int, head: bool) -> Methods:
    """The methods of a checkpoint. Raises BadModel for settings that the layout does not have."""
    if bits != 4 or method.grouping.any_order or head:
        raise settings.error(
            f"checkpoint_format 'marlin' has bits 4, desc_act false and lm_head false; found bits "
            f"{bits}, desc_act {method.grouping.any_order} and lm_head {head}"
        )
    return Methods(method.plain, method, HEAD, unused=(r".*\.workspace",))


def read_marlin(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "marlin"."""
    settings = Settings(config)
    settings.skip("quant_method", "checkpoint_format", "version")
    bits = settings.choice("bits", (4,), 4)
    grouping = Grouping.read(settings, "group_size")
    head = settings.choice("lm_head", (True, False), False)
    settings.done()
    return marlin_methods(settings, Marlin(plain, grouping), bits, head)
