"""Codes in words of 32 bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.faults import BadModel


def unpacked(words: Tensor, bits: int, dim: int, order: Sequence[int] | None = None) -> Tensor:
    """Codes uint8 of a matrix of words int32, each with 32 / bits codes along `dim`.

    `order`: the place of each field among a word's codes, from the lowest bits on; None: in order.
    """
    fields = 32 // bits
    shape = list(words.shape)
    shape.insert(dim + 1, fields)
    codes = torch.empty(shape, dtype=torch.uint8, device=words.device)
    for field in range(fields):
        place = field if order is None else order[field]
        codes.select(dim + 1, place).copy_(words >> field * bits & (1 << bits) - 1)
    return codes.flatten(dim, dim + 1)


def check_packing(pack: int, **sides: int) -> None:
    """Raises BadModel unless words of `pack` codes divide the layer's sides on this rank."""
    for side, size in sides.items():
        if size % pack:
            raise BadModel(
                f"the weight format packs {pack} {side} into one number, but a layer (of this "
                f"rank) has {size} {side}; use fewer ranks"
            )
