"""Triton: the tokens that min_p and typical_p keep, as an interval of logits."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from .bits import STAGES, ordered, row_tile

DIGITS = tl.constexpr(16)  # of two bits, of a distance in float32


@triton.jit
def _distance(x, floor, largest, scale, mean):
    """(minus the distance of a token's log-probability from its mean, -inf for a token below
    `floor`; its probability up to a factor)."""
    scaled = (x - largest) * scale
    kept = (ordered(x) >= floor) & (scaled > float("-inf"))
    near = tl.where(kept, -tl.abs(scaled - mean), float("-inf"))
    return near, tl.where(kept, tl.exp2(scaled), 0.0)


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
    near_a = tl.full((TILE,), float("-inf"), tl.float32)
    near_b = tl.full((TILE,), float("-inf"), tl.float32)
    weight_a = tl.zeros((TILE,), tl.float32)
    weight_b = tl.zeros((TILE,), tl.float32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        near, weight = _distance(x, floor, largest, scale, mean)
        better = near > near_a
        second = tl.where(better, near_a, near)
        second_weight = tl.where(better, weight_a, weight)
        near_a = tl.where(better, near, near_a)
        weight_a = tl.where(better, weight, weight_a)
        replaced = second > near_b
        near_b = tl.where(replaced, second, near_b)
        weight_b = tl.where(replaced, second_weight, weight_b)
    key_a = ordered(near_a)
    key_b = ordered(near_b)
    found = tl.full((), 0, tl.uint32)
    step = tl.full((), 1 << 30, tl.uint32)
    for _digit in range(DIGITS):
        reached = tl.full((), 0, tl.uint32)
        for digit in tl.static_range(1, 4):
            bound = found + digit * step
            some = tl.where(key_a >= bound, weight_a, 0.0) + tl.where(key_b >= bound, weight_b, 0.0)
            reached += (tl.sum(some) >= target).to(tl.uint32)
        found += reached * step
        step = step >> 2
    return found


@triton.jit
def _search(logits, vocabulary, floor, largest, scale, mean, target, TILE: tl.constexpr):
    """The largest key of `near` at or above which tokens of weight `target` lie."""
    found = tl.full((), 0, tl.uint32)
    step = tl.full((), 1 << 30, tl.uint32)
    for _digit in range(DIGITS):
        one = tl.zeros((TILE,), tl.float32)
        two = tl.zeros((TILE,), tl.float32)
        three = tl.zeros((TILE,), tl.float32)
        for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
            x = row_tile(logits, at, vocabulary, TILE)
            near, weight = _distance(x, floor, largest, scale, mean)
            key = ordered(near)
            one += tl.where(key >= found + step, weight, 0.0)
            two += tl.where(key >= found + 2 * step, weight, 0.0)
            three += tl.where(key >= found + 3 * step, weight, 0.0)
        reached = (tl.sum(one) >= target).to(tl.uint32)
        reached += (tl.sum(two) >= target).to(tl.uint32)
        reached += (tl.sum(three) >= target).to(tl.uint32)
        found += reached * step
        step = step >> 2
    return found


@triton.jit
def _interval(logits, vocabulary, floor, largest, scale, mean, found, TILE: tl.constexpr):
    """(weight nearer than `found`, least and greatest key of the tokens as near or nearer)."""
    above = tl.zeros((TILE,), tl.float32)
    least = tl.full((TILE,), 0xFFFFFFFF, tl.uint32)
    most = tl.full((TILE,), 0, tl.uint32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        near, weight = _distance(x, floor, largest, scale, mean)
        key = ordered(x)
        above += tl.where(ordered(near) > found, weight, 0.0)
        inside = (ordered(near) >= found) & (weight > 0)
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
        found = _search(logits, vocabulary, floor, largest, scale, mean, target, TILE)
        above, least, most = _interval(logits, vocabulary, floor, largest, scale, mean, found, TILE)
    if least > most:  # a row of NaN keeps what it had
        least = floor
        most = tl.full((), 0xFFFFFFFF, tl.uint32)
    return least, most


@triton.jit
def further(
    logits, vocabulary, floor, largest, scale, min_p, typical_p, TILE: tl.constexpr
):  # fmt: skip
    """Least and greatest key that min_p and then typical_p keep of the tokens not below `floor`."""
    least = largest + tl.log2(min_p) / scale
    floor = tl.maximum(floor, ordered(tl.where(least == least, least, float("-inf"))))
    ceiling = tl.full((), 0xFFFFFFFF, tl.uint32)
    if typical_p < 1:
        floor, ceiling = _typical(logits, vocabulary, floor, largest, scale, typical_p, TILE)
    return floor, ceiling
