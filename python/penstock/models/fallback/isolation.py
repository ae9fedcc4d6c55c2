"""A check with the real weights: outside attention, no token sees another one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.faults import BadModel

TOKENS = 8
CLOSE = 0.05  # of the largest number: products may round otherwise in another order


def check_isolation(
    run: Callable[[Tensor, Tensor | None], Tensor], vocab: int, device: torch.device
) -> None:
    """Checks `run`: (ids [T], positions [T] or None) -> hidden states [T, hidden], in which
    attention passes each token's own value on.

    Tokens in another order must give the same rows in that order: a convolution, a recurrence or a
    position that is counted along the rows would not. And positions must count from 0, as the
    module itself counts without them. Raises BadModel.
    """
    ids = (torch.arange(TOKENS, device=device) * 7 + 3) % vocab
    positions = torch.arange(TOKENS, device=device)
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4], device=device)
    with torch.inference_mode():
        rows = run(ids, positions)
        if not _close(run(ids[order], positions[order]), rows[order]):
            raise BadModel(
                "this model cannot run through transformers: tokens see each other outside its "
                "attention, or its positions are not those that it is given"
            )
        if not _close(run(ids, None), rows):
            raise BadModel(
                "this model cannot run through transformers: its positions do not count from 0"
            )


def _close(rows: Tensor, expected: Tensor) -> bool:
    """Whether most rows agree; in some, rounding may have chosen another expert."""
    difference = (rows - expected).float().abs().amax(-1)
    agree = difference <= CLOSE * expected.float().abs().amax()
    return int(agree.sum()) > len(rows) // 2
