"""Scratch memory of paged_decode_attention, and how the portable kernel splits keys.

A sequence's keys are split by its own kv_len: splits of SPLIT keys, or of the smallest multiple of
SPLIT that makes at most `most` of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..device import processors

SPLIT = 256
PAIRS = 1 << 16  # (sequence, key head) pairs of a launch, at most


@dataclass(frozen=True)
class Plan:
    """A launch of the portable kernel. Follows from shapes and the device alone: graphs replay it.

    `parts` [S, Hq, splits, D] and `peaks` [S, Hq, splits, 2] (largest score, sum of weights) are
    what splits leave behind.
    """

    splits: int
    """Splits that the tables have room for: a program for each, sequence and key head."""
    most: int
    """Splits of the longest sequence there may be."""
    parts: Tensor
    peaks: Tensor


def plan(q: Tensor, kv_heads: int, capacity: int) -> Plan:
    """`capacity` is the most tokens that a sequence's table holds."""
    sequences, heads, size = q.shape
    most = max(2 * processors(q.device) // kv_heads, 1)  # one long sequence fills the device
    splits = max(min(-(-capacity // SPLIT), most), 1)
    parts = torch.empty((sequences, heads, splits, size), dtype=torch.float32, device=q.device)
    peaks = torch.empty((sequences, heads, splits, 2), dtype=torch.float32, device=q.device)
    return Plan(splits, most, parts, peaks)
