"""Triton: lists of a row's largest logits, made by many programs, and what they settle.

A program that reads a part of a row finds a bound that enough of its lanes' largest logits reach,
and lists the tokens that reach it: few more, where lanes are many. Above the greatest of its bounds
a row's lists are complete: what lies there is settled among them, and the row is not read again.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from .bits import (
    MASS,
    NEARNESS,
    below_peak,
    first_step,
    keeps,
    limits,
    log2_scale,
    logit_of,
    ordered,
    search,
    weigh,
    weight_below,
)

ROOM = tl.constexpr(256)  # listed tokens of a part, at most
# A part's tokens lie in runs of RUN, every one followed by those of the other parts: frequent
# tokens have neighbouring ids, and would fill one part's list.
RUN = tl.constexpr(64)
LANES = tl.constexpr(128)  # of a part, whose largest logits tell a bound: one for each thread
TARGET_LANES = tl.constexpr(80)  # lanes of a part that reach its bound, where top_k does not say
SPARE = tl.constexpr(16)  # such lanes where it does, beside twice a part's share of top_k
LEAST = tl.constexpr(-3.4028234663852886e38)  # of all logits but -inf
EVERYTHING = tl.constexpr(0x007FFFFF)  # the key of -inf
TO_NEAREST = tl.constexpr(0x80000000 - 0x007FFFFF)  # from there to the key of 0, the nearest
NOTHING = tl.constexpr(0xFFFFFFFF)  # a bound that nothing reaches
# Of a row's part: its largest logit, and relative to that what all weigh at temperature 1, and at
# the row's own; and the sum of the latter weights times scaled logits. The third of a filtered row
# becomes what is kept of a tile, relative to the row's largest logit.
FIELDS = tl.constexpr(4)


@triton.jit
def filters_of(slot, top_ks, top_ps, min_ps, typical_ps, HAS_MIN_P: tl.constexpr):
    """(top_k, top_p, min_p, typical_p) of a slot."""
    min_p, typical_p = tl.full((), 0.0, tl.float32), tl.full((), 1.0, tl.float32)
    if HAS_MIN_P:
        min_p, typical_p = tl.load(min_ps + slot), tl.load(typical_ps + slot)
    return tl.load(top_ks + slot), tl.load(top_ps + slot), min_p, typical_p


@triton.jit
def filtering(filters, vocabulary):
    """Whether filters may drop a token."""
    top_k, top_p, min_p, typical_p = filters
    return limits(top_k, vocabulary) | (top_p < 1) | (min_p > 0) | (typical_p < 1)


@triton.jit
def _bound(groups, target):
    """What `target` of less than 1,024 groups reach, in its upper half; 0 if all but -inf does."""
    key = ordered(groups) >> 16
    least = tl.min(key)
    above = key - least
    found = tl.full((), 0, tl.uint32)
    step = first_step(tl.max(above), 1)
    while step > 0:
        # Three numbers of groups are one sum.
        one = (above >= found + step).to(tl.int32)
        two = (above >= found + 2 * step).to(tl.int32)
        three = (above >= found + 3 * step).to(tl.int32)
        number = tl.sum(one + (two << 10) + (three << 20))
        enough = (number & 1023 >= target).to(tl.uint32) + (number >> 10 & 1023 >= target)
        found += (enough + (number >> 20 >= target)).to(tl.uint32) * step
        step = step >> 2
    bound = (least + found) << 16
    return tl.where(bound > EVERYTHING, bound, 0).to(tl.uint32)


@triton.jit
def _gather(x, places, bound, listed):
    """Lists the places in the part, [LANES, steps] as the logits x, of logits above -inf that reach
    a bound, lane by lane, if there is room. Returns their number."""
    reaches = x >= tl.maximum(logit_of(bound), LEAST)
    numbers = tl.sum(reaches.to(tl.int32), 1)
    number = tl.sum(numbers)
    if number <= ROOM:
        before = tl.cumsum(numbers, 0) - numbers - 1
        slots = before[:, None] + tl.cumsum(reaches.to(tl.int32), 1)
        tl.store(listed + slots, places, reaches)
    return number


@triton.jit
def _token(i, part, parts):
    """The i-th token of a part."""
    return ((i // RUN) * parts + part) * RUN + i % RUN


@triton.jit
def list_part(
    logits, apart, row, part, parts, vocabulary, temperature, top_k, sums, lists,
    HAS_MIN_P: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Lists what a part of a filtered row may keep. `logits` are the row's, `sums` the part's.

    Logits are `apart` from each other: 1, which the compiler must not know. It would load vectors,
    for which a lane's tokens would be several threads', and exchange everything twice.
    """
    bounds, counts, listed = lists
    steps: tl.constexpr = TILE // LANES
    # Neighbours are in lanes of their own.
    lane, step = tl.arange(0, LANES)[:, None], tl.arange(0, steps)[None, :]
    token = _token(lane, part, parts) + step * (LANES * parts)
    x = tl.load(logits + token * apart, token < vocabulary, other=float("-inf")).to(tl.float32)
    groups = tl.max(x, 1)
    peak = tl.max(groups)
    tl.store(sums, peak)
    tl.store(sums + 1, weight_below(x, peak))
    limited = limits(top_k, vocabulary)
    if HAS_MIN_P or not limited:  # otherwise only what is listed counts
        scaled = below_peak(x, peak) * log2_scale(temperature)
        weight = tl.exp2(scaled)
        tl.store(sums + 2, tl.sum(weight))
        if HAS_MIN_P:
            tl.store(sums + 3, tl.sum(tl.where(weight > 0, weight * scaled, 0.0)))
    share = tl.minimum(SPARE + 2 * tl.minimum(top_k, vocabulary) // parts, TARGET_LANES)
    bound = _bound(groups, tl.where(limited, share, TARGET_LANES))
    at = row * parts + part
    count = _gather(x, lane + step * LANES, bound, listed + at * ROOM)
    tl.store(bounds + at, bound.to(tl.int32, bitcast=True))
    tl.store(counts + at, count)


@triton.jit
def row_sums(sums, parts, scale, PARTS: tl.constexpr):
    """A row's largest logit, the sum of its weights, and that of weights times scaled logits."""
    part = tl.arange(0, PARTS)
    at = sums + part * FIELDS
    exists = part < parts
    peak = tl.load(at, exists, other=float("-inf"))
    largest = tl.max(peak)
    below = (peak - largest) * scale
    factor = tl.where(exists & (peak > float("-inf")), tl.exp2(below), 0.0)
    mass = tl.load(at + 2, exists, other=0.0)
    first = tl.load(at + 3, exists, other=0.0) + tl.where(factor > 0, below, 0.0) * mass
    return largest, tl.sum(factor * mass), tl.sum(factor * first)


@triton.jit
def least_key(largest, scale, min_p):
    """The key of the least logit that min_p keeps."""
    least = largest + tl.log2(min_p) / scale
    return ordered(tl.where(least == least, least, float("-inf")))


@triton.jit
def _typical(
    x, floor, bound, mass, first, largest, scale, typical_p, DIGITS: tl.constexpr
):  # fmt: skip
    """(whether a list settles it, least, greatest key kept) of tokens x not below `floor`.

    `mass` and `first`: the whole row's sums, for a floor that keeps all of it. Otherwise the floor
    is not below the bound, and all that counts is listed.
    """
    scaled = (x - largest) * scale
    weight = tl.where((ordered(x) >= floor) & (scaled > float("-inf")), tl.exp2(scaled), 0.0)
    complete = floor >= bound
    mass = tl.where(complete, tl.sum(weight), mass)
    mean = tl.where(complete, tl.sum(tl.where(weight > 0, weight * scaled, 0.0)), first) / mass
    near, _ = weigh(x, floor, largest, scale, mean, NEARNESS)
    least = tl.full((), EVERYTHING, tl.uint32)
    found = search(near, weight, mass * typical_p, least, least + TO_NEAREST, DIGITS)
    inside = (near >= found) & (weight > 0)
    least = tl.min(tl.where(inside, ordered(x), NOTHING).to(tl.uint32))
    most = tl.max(tl.where(inside, ordered(x), 0).to(tl.uint32))
    # What is not listed lies below the bound: farther from the mean than the bound is, if that is
    # below the mean.
    edge = (logit_of(bound) - largest) * scale
    outside = (edge <= mean) & (found > ordered(-tl.abs(edge - mean)))
    return (complete | outside) & (least <= most), least, most


@triton.jit
def _filter(x, exists, bound, row, scale, filters, vocabulary, DIGITS: tl.constexpr):
    """(whether a row's lists settle it, least, greatest key kept). `row`: (largest logit, sums of
    weights and of weights times scaled logits)."""
    largest, mass, first = row
    top_k, top_p, min_p, typical_p = filters
    key, most = ordered(x), ordered(largest)
    floor = tl.full((), 0, tl.uint32)
    ceiling = tl.full((), NOTHING, tl.uint32)
    settled = largest > float("-inf")  # nor NaN
    limited = limits(top_k, vocabulary)
    if limited:
        number = tl.where(exists, 1.0, 0.0)
        floor = search(key, number, top_k.to(tl.float32), bound, most, DIGITS)
    if top_p < 1:
        # Of what top_k keeps, this needs the sum. Otherwise min_p may still lift the floor.
        settled &= (floor >= bound) | (limited == 0)
        weight = tl.where(exists, weigh(x, floor, largest, scale, 0.0, MASS)[1], 0.0)
        target = tl.where(floor >= bound, tl.sum(weight), mass) * top_p
        found = search(key, weight, target, tl.maximum(bound, floor), most, DIGITS)
        floor = tl.maximum(floor, found)  # by rounding, nothing may reach a target near all
    if min_p > 0:
        floor = tl.maximum(floor, least_key(largest, scale, min_p))
    if typical_p < 1:
        settled &= (floor >= bound) | (floor <= EVERYTHING)
        sound, floor, ceiling = _typical(
            x, floor, bound, mass, first, largest, scale, typical_p, 16
        )  # fmt: skip
        settled &= sound
    else:
        settled &= floor >= bound
    return settled, floor, ceiling


@triton.jit
def _store_masses(sums, x, tile, kept, tiles, largest, scale, CHUNK: tl.constexpr):
    """The third field of each tile: what its kept tokens weigh, relative to the row's largest."""
    weight = tl.where(kept, tl.exp2((x - largest) * scale), 0.0)
    for first in range(0, tiles, CHUNK):
        some = first + tl.arange(0, CHUNK)
        inside = tl.where(some[:, None] == tile[None, :], weight[None, :], 0.0)
        tl.store(sums + some * FIELDS + 2, tl.sum(inside, 1), some < tiles)


@triton.jit
def _settle_among(
    logits, sums, lists, bound, row, parts, scale, filters, vocabulary,
    DIGITS: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """What `settle` finds among the first WIDTH tokens of each list, which are all there are."""
    counts, listed = lists
    slot = tl.arange(0, PARTS * WIDTH)
    part = slot // WIDTH
    exists = slot % WIDTH < tl.load(counts + row * parts + part, part < parts, other=0)
    at = (row * parts + part) * ROOM + slot % WIDTH
    token = _token(tl.load(listed + at, exists, other=0), part, parts)
    x = tl.load(logits + token, exists, other=float("-inf")).to(tl.float32)
    of_row = row_sums(sums, parts, scale, PARTS)
    settled, floor, ceiling = _filter(x, exists, bound, of_row, scale, filters, vocabulary, DIGITS)
    if settled:
        kept = exists & keeps(x, floor, ceiling)
        tl.debug_barrier()  # all have read what is overwritten
        _store_masses(sums, x, token // TILE, kept, parts, of_row[0], scale, CHUNK)
        tl.debug_barrier()
    return settled, floor, ceiling


@triton.jit
def settle(
    logits, sums, lists, row, parts, scale, filters, vocabulary,
    DIGITS: tl.constexpr, PARTS: tl.constexpr, ABOVE: tl.constexpr, WIDTH: tl.constexpr,
    CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(whether lists settle a filtered row, least, greatest key kept), where the longest has more
    than ABOVE tokens and at most WIDTH; if so, masses of tiles are stored, CHUNK at a time.
    `logits` and `sums` are the row's."""
    bounds, counts, listed = lists
    part = tl.arange(0, PARTS)
    at = row * parts + part
    settled = tl.full((), 0, tl.int1)
    floor, ceiling = tl.full((), 0, tl.uint32), tl.full((), 0, tl.uint32)
    most = tl.max(tl.load(counts + at, part < parts, other=0))
    if (most > ABOVE) & (most <= WIDTH):
        bound = tl.max(tl.load(bounds + at, part < parts, other=0).to(tl.uint32, bitcast=True))
        settled, floor, ceiling = _settle_among(
            logits, sums, (counts, listed), bound, row, parts, scale, filters, vocabulary, DIGITS,
            PARTS, WIDTH, CHUNK, TILE,
        )  # fmt: skip
    return settled, floor, ceiling
