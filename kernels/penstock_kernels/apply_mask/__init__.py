"""Applies token masks, with one bit per token, to logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import expect
from ..op import Op
from . import reference

_OP = Op("apply_mask", reference.apply_mask, mutates=("logits",))


def apply_mask(logits: Tensor, rows: Tensor, mask: Tensor) -> None:
    """logits[rows[i], t] = -inf where bit t % 32 of mask[i, t // 32] is 0, in place.

    Args: logits [R, V] with contiguous rows, any float dtype; rows [G] int32, distinct; mask
        [G, ceil(V / 32)] int32 contiguous. Both on the device of the logits.
    Bytes moved: G * V / 8 of mask, and what is written: the forbidden logits, 32 bytes at least.
    """
    count, vocab = rows.numel(), logits.shape[-1]
    expect("rows", rows, (count,), (torch.int32,))
    expect("mask", mask, (count, -(-vocab // 32)), (torch.int32,))
    _OP.on(logits)(logits, rows, mask)
