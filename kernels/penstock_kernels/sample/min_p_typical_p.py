"""Triton: the tokens that min_p and typical_p keep, as an interval of logits."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from .bits import NEARNESS, STAGES, ordered, row_tile, search_pairs, search_row, weigh
from .shortlist import least_key

DIGITS = tl.constexpr(16)  # of two bits, of a distance in float32


@triton.jit
def _moments(logits, vocabulary, floor, largest, scale, TILE: tl.constexpr):
    """The sum of the kept tokens' weights, and the mean of their scaled logits."""
    total = tl.zeros((TILE,), tl.float32)
    first = tl.zeros((TILE,), tl.float32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        scaled = (x - largest) * scale
        weight = tl.where(ordered(x) >= floor, tl.exp2(scaled), 0.0)
        total += weight
        first += tl.where(weight > 0, weight * scaled, 0.0)
    total = tl.sum(total)
    return total, tl.sum(first) / total


@triton.jit
def _nearest(logits, vocabulary, floor, largest, scale, mean, target, TILE: tl.constexpr):
    """The search among the two nearest tokens of each lane: never above what the whole row says."""
    key_a = tl.full((TILE,), 0, tl.uint32)
    key_b = tl.full((TILE,), 0, tl.uint32)
    weight_a = tl.zeros((TILE,), tl.float32)
    weight_b = tl.zeros((TILE,), tl.float32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        key, weight = weigh(x, floor, largest, scale, mean, NEARNESS)
        better = key > key_a
        second = tl.where(better, key_a, key)
        second_weight = tl.where(better, weight_a, weight)
        key_a = tl.where(better, key, key_a)
        weight_a = tl.where(better, weight, weight_a)
        replaced = second > key_b
        key_b = tl.where(replaced, second, key_b)
        weight_b = tl.where(replaced, second_weight, weight_b)
    return search_pairs(key_a, weight_a, key_b, weight_b, target, DIGITS)


@triton.jit
def _interval(logits, vocabulary, floor, largest, scale, mean, found, TILE: tl.constexpr):
    """(weight nearer than `found`, least and greatest key of the tokens as near or nearer)."""
    above = tl.zeros((TILE,), tl.float32)
    least = tl.full((TILE,), 0xFFFFFFFF, tl.uint32)
    most = tl.full((TILE,), 0, tl.uint32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        near, weight = weigh(x, floor, largest, scale, mean, NEARNESS)
        key = ordered(x)
        above += tl.where(near > found, weight, 0.0)
        inside = (near >= found) & (weight > 0)
        least = tl.minimum(least, tl.where(inside, key, 0xFFFFFFFF).to(tl.uint32))
        most = tl.maximum(most, tl.where(inside, key, 0).to(tl.uint32))
    return tl.sum(above), tl.min(least), tl.max(most)


@triton.jit
def _typical(logits, vocabulary, floor, largest, scale, typical_p, TILE: tl.constexpr):
    """Least and greatest key that typical_p keeps, of the tokens not below `floor`.

    A token's distance is |-log p - entropy| = |z - mean of z|, for scaled logits z.
    """
    total, mean = _moments(logits, vocabulary, floor, largest, scale, TILE)
    target = total * typical_p
    found = _nearest(logits, vocabulary, floor, largest, scale, mean, target, TILE)
    above, least, most = _interval(logits, vocabulary, floor, largest, scale, mean, found, TILE)
    if above >= target:
        found = search_row(
            logits, vocabulary, floor, largest, scale, mean, target, NEARNESS, DIGITS, TILE
        )
        above, least, most = _interval(logits, vocabulary, floor, largest, scale, mean, found, TILE)
    if least > most:  # a row of NaN keeps what it had
        least = floor
        most = tl.full((), 0xFFFFFFFF, tl.uint32)
    return least, most


@triton.jit
def min_p_typical_p(
    logits, vocabulary, floor, largest, scale, min_p, typical_p, TILE: tl.constexpr
):  # fmt: skip
    """Least and greatest key that min_p and then typical_p keep of the tokens not below `floor`."""
    floor = tl.maximum(floor, least_key(largest, scale, min_p))
    ceiling = tl.full((), 0xFFFFFFFF, tl.uint32)
    if typical_p < 1:
        floor, ceiling = _typical(logits, vocabulary, floor, largest, scale, typical_p, TILE)
    return floor, ceiling
