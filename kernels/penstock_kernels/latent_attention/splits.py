"""How latent_attention splits the keys of few rows among programs, and what splits leave behind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..device import divided_up, processors

SPLIT = 128  # keys of a split: a multiple of this


@dataclass(frozen=True)
class Plan:
    """A launch. Follows from shapes and the device alone: graphs replay it.

    `parts` [T, Hq, splits, C] and `peaks` [T, Hq, splits, 2] (largest score, sum of weights) are
    what splits leave behind; empty if there is one.
    """

    tiles: int
    """Tiles of rows of a sequence. Rows are (query, head) pairs, queries first."""
    splits: int
    """Programs that share the keys of a tile."""
    parts: Tensor
    peaks: Tensor


def plan(q: Tensor, rank: int, sequences: int, rows: tuple[int, int], capacity: int) -> Plan:
    """`rows` are (most of a sequence, those of a tile); `capacity` is the most tokens that a
    sequence's table holds."""
    tiles = divided_up(*rows)
    # As many programs as run at once, two on each multiprocessor, if all sequences were equal.
    splits = min(divided_up(capacity, SPLIT), 2 * processors(q.device) // (tiles * sequences))
    splits = max(splits, 1)
    shape = (*q.shape[:2], splits) if splits > 1 else (0, 0, 0)
    parts = torch.empty((*shape, rank), dtype=torch.float32, device=q.device)
    peaks = torch.empty((*shape, 2), dtype=torch.float32, device=q.device)
    return Plan(tiles, splits, parts, peaks)
