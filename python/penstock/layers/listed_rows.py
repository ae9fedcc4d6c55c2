"""Attention to listed rows of a cache: each query is a decode of its own, whose table lists blocks
of one token or of a few."""

from __future__ import annotations

from typing import NamedTuple

from penstock_kernels import latent_attention
from torch import Tensor

QUERIES = 1 << 15  # of a launch, whose grid has room for 65,535


class Listed(NamedTuple):
    """The rows of a cache that each query attends to."""

    cache: Tensor
    """[blocks, 1, 1, tokens, W]."""
    tables: Tensor
    """[tables, K] int32: blocks."""
    slots: Tensor
    """[T] int32: the table of each query."""
    counts: Tensor
    """[T] int32: how many tokens of its blocks a query attends to, of the last one its first."""


def attend_listed(
    q: Tensor,
    listed: Listed,
    scale: float,
    out: Tensor,
    sinks: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """Attends q [T, heads, C + R]. Fills out [T, heads, C] and, if given, `sums` [T, heads]: the
    logarithm of each row's sum of exponentials, without the sinks [heads]."""
    for start in range(0, len(q), QUERIES):
        some = slice(start, start + QUERIES)
        slots, counts = listed.slots[some], listed.counts[some]
        latent_attention(
            *(q[some], listed.cache, listed.tables, slots, None, counts, scale),
            rank=out.shape[2],
            max_query=1,
            out=out[some],
            sinks=sinks,
            lse=None if sums is None else sums[some],
        )
