"""Triton: the choice of the largest among a row's scores, without a sort.

It searches the smallest score that is chosen, four bits of it at a time, then takes the scores
above it and as many of its equals as are wanted, those of earlier places first.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from ..sample.bits import ordered

SCRATCH = 1 << 24  # scores at once: 64 MiB
TILE = 512  # scores of a tile


@triton.jit
def _tile(scores, at, seen, TILE: tl.constexpr):
    """(places of a tile, which of them the row has, their scores as integers of their order)."""
    place = at + tl.arange(0, TILE)
    visible = place < seen
    return place, visible, ordered(tl.load(scores + place, visible, other=0.0))


@triton.jit
def threshold(scores, seen, most, TILE: tl.constexpr):
    """(the smallest score among the `most` largest, how many of that score are among them)."""
    digits = tl.arange(0, 16)
    found = tl.full((), 0, tl.uint32)
    wanted = most
    for step in tl.static_range(8):
        shift = 28 - 4 * step
        number = tl.zeros((16,), tl.int32)
        for at in range(0, seen, TILE):
            _, visible, score = _tile(scores, at, seen, TILE)
            # What precedes this digit; the first one has nothing before it.
            same = visible & ((score >> shift) >> 4 == (found >> shift) >> 4)
            digit = ((score >> shift) & 15).to(tl.int32)
            hits = same[:, None] & (digit[:, None] == digits[None, :])
            number += tl.sum(hits.to(tl.int32), 0)
        above = tl.sum(number) - tl.cumsum(number, 0)
        chosen = (above < wanted) & (above + number >= wanted)
        wanted -= tl.sum(tl.where(chosen, above, 0))
        found |= tl.sum(tl.where(chosen, digits, 0)).to(tl.uint32) << shift
    return found, wanted


@triton.jit
def taken(scores, at, seen, most, floor, equals, passed, TILE: tl.constexpr):
    """(places of a tile, which of them are chosen, equals of `floor` up to its end). `floor`,
    `equals`: what `threshold` returned; `passed`: equals before the tile."""
    place = at + tl.arange(0, TILE)
    chosen = place < seen
    if seen > most:
        _, visible, score = _tile(scores, at, seen, TILE)
        tie = visible & (score == floor)
        earlier = passed + tl.cumsum(tie.to(tl.int32), 0)
        chosen = (visible & (score > floor)) | (tie & (earlier <= equals))
        passed += tl.sum(tie.to(tl.int32))
    return place, chosen, passed


@triton.jit
def fill(out, count, most, TILE: tl.constexpr):
    """Puts -1 into a list of `most` places behind the first `count` ones."""
    for at in range(count, most, TILE):
        place = at + tl.arange(0, TILE)
        tl.store(out + place, tl.full((TILE,), -1, tl.int32), place < most)
