"""Which rows of the caches the tokens of a step read and write.

All shapes follow from the step's, so that a graph of the step can contain these computations. What
layers have in common is computed once per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.layers.attention import KvPlaces, StepContext


class StepTokens(NamedTuple):
    """The tokens of a step as sequences of their own."""

    slots: Tensor
    """[T] int32: the row of the block tables of each token's sequence."""
    seen: Tensor
    """[T] int32: tokens up to each one, itself included; 0 = a padded row."""


class Ends(NamedTuple):
    """The tokens of a step that end a window, and as many more as the shapes of the step allow."""

    tokens: Tensor
    """[E] int64: rows of the step."""
    exist: Tensor
    """[E] bool; the others are padding."""


class Rows(NamedTuple):
    """Rows of a cache that each token reads."""

    rows: Tensor
    """[T, K] int32."""
    counts: Tensor
    """[T] int32: how many of them."""


def once(context: StepContext, key: tuple[object, ...], compute: Callable[[], Tensor]) -> Tensor:
    """Returns what `compute` returned for the first layer of the step that had this key."""
    if key not in context.common:
        context.common[key] = compute()
    return context.common[key]


def step_tokens(context: StepContext) -> StepTokens:
    """Returns the tokens of a step."""
    return StepTokens(*once(context, ("tokens",), lambda: _tokens(context)))


def _tokens(context: StepContext) -> Tensor:
    """The fields of StepTokens, [2, T]."""
    positions, chunks, decodes = context.positions, context.chunks, context.decodes
    found = torch.zeros((2, len(positions)), dtype=torch.int32, device=positions.device)
    if chunks is not None:
        row = torch.arange(len(positions), dtype=torch.int32, device=positions.device)
        chunk = torch.searchsorted(chunks.query_start, row, right=True) - 1
        exists = (chunk >= 0) & (chunk < len(chunks.slots))
        found[0] = chunks.slots[chunk.clamp(0, len(chunks.slots) - 1)]
        found[1] = torch.where(exists, positions + 1, 0)
    if decodes is not None:
        first = found[:, : decodes.count]
        is_decode = decodes.kv_len > 0  # else padding, or rows of chunks
        first.copy_(torch.where(is_decode, torch.stack((decodes.slots, decodes.kv_len)), first))
    return found


def cache_rows(tables: Tensor, slots: Tensor, positions: Tensor, block_tokens: int) -> Tensor:
    """Returns the rows [N, K] of the tokens at `positions` [N, K] of sequences `slots` [N]."""
    blocks = tables[slots.long()[:, None], positions // block_tokens]
    return blocks * block_tokens + positions % block_tokens


def last_rows(context: StepContext, places: KvPlaces, window: int, block_tokens: int) -> Rows:
    """Returns the rows of the last `window` tokens up to each token."""
    tokens = step_tokens(context)

    def find() -> Tensor:
        first = (tokens.seen - window).clamp(min=0)[:, None]
        steps = torch.arange(window, dtype=torch.int32, device=first.device)
        last = (tokens.seen - 1).clamp(min=0)[:, None]
        at = torch.minimum(first + steps, last)
        return cache_rows(places.tables, tokens.slots, at, block_tokens)

    rows = once(context, ("last", id(places), window), find)
    return Rows(rows, tokens.seen.clamp(max=window))


def window_ends(context: StepContext, rate: int) -> Ends:
    """Returns the tokens that end a window of `rate` tokens."""
    seen = step_tokens(context).seen
    sequences = 0 if context.decodes is None else context.decodes.count
    sequences += 0 if context.chunks is None else len(context.chunks.slots)
    most = min(len(seen), len(seen) // rate + sequences)
    ends = once(context, ("ends", rate), lambda: (seen > 0) & (seen % rate == 0))
    tokens = once(context, ("end tokens", rate), lambda: _places(ends, most))
    number = torch.arange(most, device=seen.device)
    return Ends(tokens, once(context, ("ends exist", rate), lambda: number < ends.sum()))


def _places(chosen: Tensor, most: int) -> Tensor:
    """The places of the true elements of `chosen` [T], at most `most` of them, then zeros."""
    place = torch.where(chosen, chosen.cumsum(0) - 1, most)
    rows = torch.arange(len(chosen), device=chosen.device)
    found = torch.zeros(most + 1, dtype=torch.int64, device=chosen.device)
    return found.scatter_(0, place, rows)[:most]


def write_rows(cache: Tensor, slots: Tensor, rows: Tensor, exist: Tensor) -> None:
    """Puts rows [N, W] into the rows `slots` [N] of a cache [R, W], those that `exist` [N].

    The others become copies of the first that does, or of what the cache has, so equal rows are
    written to one place.
    """
    number = torch.arange(len(rows), device=rows.device)
    source = torch.where(exist, number, exist.int().argmax())
    some = exist.any()
    target = torch.where(some, slots.index_select(0, source), 0)
    kept = torch.where(some, rows.index_select(0, source), cache[:1])
    cache.index_copy_(0, target.long(), kept)
