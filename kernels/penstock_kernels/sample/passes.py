"""Triton: what a row keeps, by passes over it, for rows that keep too much for a list.

The search for a threshold first looks only at the two largest logits of each lane of a pass over
the row, which are in registers. A pass over the row then tells whether what it found is right for
all; if not, the search reads the row at every step. No sort.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from .bits import (
    MASS,
    NUMBER,
    STAGES,
    keeps,
    limits,
    ordered,
    row_tile,
    search_pairs,
    search_row,
    weigh,
)
from .min_p_typical_p import min_p_typical_p
from .shortlist import FIELDS


@triton.jit
def _search_tops(
    tops, floor, largest, scale, target, KIND: tl.constexpr, DIGITS: tl.constexpr
):  # fmt: skip
    """The search among the two largest logits of each lane: never above what the row says."""
    key_a, weight_a = weigh(tops[0], floor, largest, scale, 0.0, KIND)
    key_b, weight_b = weigh(tops[1], floor, largest, scale, 0.0, KIND)
    return search_pairs(key_a, weight_a, key_b, weight_b, target, DIGITS)


@triton.jit
def _mass(logits, vocabulary, floor, largest, scale, TILE: tl.constexpr):
    """What the row's tokens weigh that are not below `floor`, in parts."""
    mass = tl.zeros((TILE,), tl.float32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        mass += weigh(x, floor, largest, scale, 0.0, MASS)[1]
    return mass


@triton.jit
def _above(
    logits, vocabulary, floor, largest, scale, found, KIND: tl.constexpr, TILE: tl.constexpr
):
    """(weight of the row's tokens above `found`, number of those at or above it)."""
    above = tl.zeros((TILE,), tl.float32)
    number = tl.zeros((TILE,), tl.int32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        key, weight = weigh(x, floor, largest, scale, 0.0, KIND)
        above += tl.where(key > found, weight, 0.0)
        number += tl.where(key >= found, 1, 0)
    return tl.sum(above), tl.sum(number)


@triton.jit
def thresholds_by_passes(
    logits, filters, scale, vocabulary,
    DIGITS: tl.constexpr, HAS_MIN_P: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(the row's largest logit, the least and the greatest key that it keeps)."""
    top_k, top_p, min_p, typical_p = filters
    first = tl.full((TILE,), float("-inf"), tl.float32)
    second = tl.full((TILE,), float("-inf"), tl.float32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        second = tl.maximum(second, tl.minimum(first, x))
        first = tl.maximum(first, x)
    largest = tl.max(first)
    tops = first, second
    floor = tl.full((), 0, tl.uint32)
    complete = False  # whether `tops` hold all that is kept
    if limits(top_k, vocabulary):
        count = top_k.to(tl.float32)
        found = _search_tops(tops, floor, largest, scale, count, NUMBER, DIGITS)
        above, number = _above(logits, vocabulary, floor, largest, scale, found, NUMBER, TILE)
        held = tl.where(ordered(first) >= found, 1, 0) + tl.where(ordered(second) >= found, 1, 0)
        complete = tl.sum(held) == number
        if above >= count:
            found = search_row(
                logits, vocabulary, floor, largest, scale, 0.0, count, NUMBER, DIGITS, TILE
            )
            complete = False
        floor = found
    if top_p < 1:
        mass = weigh(first, floor, largest, scale, 0.0, MASS)[1]
        mass += weigh(second, floor, largest, scale, 0.0, MASS)[1]
        if not complete:
            mass = _mass(logits, vocabulary, floor, largest, scale, TILE)
        target = tl.sum(mass) * top_p
        found = _search_tops(tops, floor, largest, scale, target, MASS, DIGITS)
        if not complete:
            above, number = _above(logits, vocabulary, floor, largest, scale, found, MASS, TILE)
            if above >= target:
                found = search_row(
                    logits, vocabulary, floor, largest, scale, 0.0, target, MASS, DIGITS, TILE
                )
        floor = tl.maximum(floor, found)  # by rounding, nothing may reach a target near all
    ceiling = tl.full((), 0xFFFFFFFF, tl.uint32)
    if HAS_MIN_P:
        floor, ceiling = min_p_typical_p(
            logits, vocabulary, floor, largest, scale, min_p, typical_p, TILE
        )  # fmt: skip
    return largest, floor, ceiling


@triton.jit
def masses_by_passes(
    logits, parts, tiles, vocabulary, largest, scale, floor, ceiling,
    TILE: tl.constexpr,
):  # fmt: skip
    """Field 2 of the row's tiles: what is kept of each weighs, relative to the largest logit."""
    for tile in range(tiles):
        x = row_tile(logits, tile * TILE, vocabulary, TILE)
        weight = tl.exp2((x - largest) * scale)
        tl.store(parts + tile * FIELDS + 2, tl.sum(tl.where(keeps(x, floor, ceiling), weight, 0.0)))
