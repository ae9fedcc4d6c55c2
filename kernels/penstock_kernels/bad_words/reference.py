"""Reference of bad_words in torch."""

from __future__ import annotations

import torch
from torch import Tensor

ANY = -1  # a place before a word, or before a sequence


def bad_words(
    logits: Tensor, slots: Tensor, previous: Tensor, counts: Tensor, words: Tensor, recent: Tensor
) -> None:
    """See the public function."""
    some = counts[slots] > 0
    if not bool(some.any()):
        return
    rows, slots = some.nonzero()[:, 0], slots[some]
    table = words[slots]
    known = torch.cat([recent[slots], previous[some, None].int()], 1)
    before = table[:, :, :-1]
    matches = ((before == known[:, None]) | (before == ANY)).all(2)
    matches &= torch.arange(table.shape[1], device=table.device) < counts[slots, None]
    which, word = matches.nonzero().unbind(1)
    logits[rows[which], table[which, word, -1].long()] = -torch.inf
    recent[slots] = known[:, 1:]
