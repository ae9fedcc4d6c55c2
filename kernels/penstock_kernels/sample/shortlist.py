"""Triton: a row's largest logits, found by many programs, and what can be settled among them.

`survey` reads a row in parts: what each part weighs, and the largest logits of its groups. The
N-th largest of those is a bound that at least N tokens reach and, where groups are many, few more.
`gather` lists the tokens that reach it, `settle` searches among them. Whether that is right for the
whole row follows from the bound: nothing outside the list reaches it.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .bits import LOG2_E, MASS, NEARNESS, ordered, reached, reaching, weigh

PART = 8192  # tokens that a program reads
ROOM = 256  # listed tokens of a part, at most
# A part's tokens lie in runs of RUN, every one followed by those of the other parts: frequent
# tokens have neighbouring ids, and would fill one part's list.
RUN = tl.constexpr(64)
GROUP = tl.constexpr(32)
WANTED = tl.constexpr(ROOM // 2)  # tokens of a part, on average, where top_k does not say
BOUND_DIGITS = tl.constexpr(8)  # of the bound, which may be too low
FURTHER_DIGITS = tl.constexpr(16)
NOTHING = tl.constexpr(0xFFFFFFFF)  # a bound that nothing reaches
ANYWHERE = ["typical_ps"]  # behind min_ps, wherever that ends: one variant for all


@triton.jit
def _part(logits, vocabulary, PART: tl.constexpr):
    """This program's tokens of a row, and which exist."""
    i = tl.arange(0, PART)
    token = ((i // RUN) * tl.num_programs(1) + tl.program_id(1)) * RUN + i % RUN
    exists = token < vocabulary
    return tl.load(logits + token, exists, other=float("-inf")).to(tl.float32), exists


@triton.jit
def filtered(top_k, top_p, typical_ps, row, vocabulary, FURTHER: tl.constexpr):
    """Whether a row needs a threshold that min_p alone does not give."""
    needed = ((top_k > 0) & (top_k < vocabulary)) | (top_p < 1)
    if FURTHER:
        needed |= tl.load(typical_ps + row) < 1
    return needed


@triton.jit
def log2_scale(temperature):
    """Finite even for the tiniest temperature, so that the largest logit, times 0, weighs 1."""
    return tl.minimum(LOG2_E / temperature, 1.0e37)


@triton.jit
def search(key, weight, target, DIGITS: tl.constexpr):
    """The largest key at or above which tokens of weight `target` lie; two bits a digit."""
    found = tl.full((), 0, tl.uint32)
    step = tl.full((), 1 << 30, tl.uint32)
    for _digit in range(DIGITS):
        one = reaching(key, weight, found + step)
        two = reaching(key, weight, found + 2 * step)
        three = reaching(key, weight, found + 3 * step)
        found += reached(one, two, three, target) * step
        step = step >> 2
    return found


@triton.jit(do_not_specialize_on_alignment=ANYWHERE)
def survey(
    logits,
    temperatures,
    top_ks,
    top_ps,
    typical_ps,
    maxima,
    sums,
    bounds,
    arrived,
    stride,
    vocabulary,
    FURTHER: tl.constexpr,
    GROUPS: tl.constexpr,
    PART: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Per part of a random row: its groups' largest logits; and (its largest, the sum of the
    weights below it, the sum of weights times scaled logits). The program that comes last finds
    the bound of a filtered row; `arrived` is zero before and after."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    needed = filtered(top_k, tl.load(top_ps + row), typical_ps, row, vocabulary, FURTHER)
    # min_p needs the row's largest logit, and who keeps all needs nothing.
    if (temperature <= 0) | ((needed == 0) & (not FURTHER)):
        return
    x, _ = _part(logits + row * stride, vocabulary, PART)
    parts = tl.num_programs(1)
    part = row * parts + tl.program_id(1)
    groups: tl.constexpr = PART // GROUP
    largest = tl.max(tl.reshape(x, (GROUP, groups)), 0)  # neighbours are in groups of their own
    tl.store(maxima + part * groups + tl.arange(0, groups), largest)
    peak = tl.max(largest)
    scaled = (x - tl.where(peak == float("-inf"), 0.0, peak)) * log2_scale(temperature)
    weight = tl.exp2(scaled)
    tl.store(sums + part * 3, peak)
    tl.store(sums + part * 3 + 1, tl.sum(weight))
    tl.store(sums + part * 3 + 2, tl.sum(tl.where(weight > 0, weight * scaled, 0.0)))
    if needed:
        tl.debug_barrier()
        if tl.atomic_add(arrived + row, 1, sem="acq_rel") == parts - 1:
            wanted = parts * WANTED
            wanted = tl.where(top_k > 0, tl.minimum(top_k, wanted), wanted).to(tl.float32)
            bound = _bound(maxima + row * parts * groups, parts * groups, wanted, GROUPS)
            tl.store(bounds + row, bound.to(tl.int32, bitcast=True))
            tl.store(arrived + row, 0)


@triton.jit
def _bound(maxima, groups, wanted, GROUPS: tl.constexpr):
    """What `wanted` groups reach. Other programs wrote them: past this one's cache."""
    group = tl.arange(0, GROUPS)
    exists = group < groups
    largest = tl.load(maxima + group, exists, other=float("-inf"), cache_modifier=".cg")
    return search(ordered(largest), tl.where(exists, 1.0, 0.0), wanted, BOUND_DIGITS)


@triton.jit(do_not_specialize_on_alignment=ANYWHERE)
def gather(
    logits,
    temperatures,
    top_ks,
    top_ps,
    typical_ps,
    bounds,
    counts,
    listed,
    stride,
    vocabulary,
    FURTHER: tl.constexpr,
    PART: tl.constexpr,
    ROOM: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Per part of a filtered row: the logits that reach the row's bound, and their number."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    needed = filtered(top_k, top_p, typical_ps, row, vocabulary, FURTHER)
    if (tl.load(temperatures + row) <= 0) | (needed == 0):
        return
    bound = tl.load(bounds + row).to(tl.uint32, bitcast=True)
    x, exists = _part(logits + row * stride, vocabulary, PART)
    reaches = (exists & (ordered(x) >= bound)).to(tl.int32)
    place = tl.cumsum(reaches, 0) - 1
    part = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(listed + part * ROOM + place, x, (reaches == 1) & (place < ROOM))
    tl.store(counts + part, tl.sum(reaches))


@triton.jit
def row_sums(sums, row, parts, scale, PARTS: tl.constexpr):
    """A row's largest logit, the sum of its weights, and that of weights times scaled logits."""
    part = tl.arange(0, PARTS)
    at = sums + (row * parts + part) * 3
    exists = part < parts
    peak = tl.load(at, exists, other=float("-inf"))
    largest = tl.max(peak)
    below = (peak - largest) * scale
    factor = tl.where(exists & (peak > float("-inf")), tl.exp2(below), 0.0)
    mass = tl.load(at + 1, exists, other=0.0)
    first = tl.load(at + 2, exists, other=0.0) + tl.where(factor > 0, below, 0.0) * mass
    return largest, tl.sum(factor * mass), tl.sum(factor * first)


@triton.jit
def least_key(largest, scale, min_p):
    """The key of the least logit that min_p keeps."""
    least = largest + tl.log2(min_p) / scale
    return ordered(tl.where(least == least, least, float("-inf")))


@triton.jit
def _typical(x, floor, bound, mass, first, largest, scale, typical_p):
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
    found = search(near, weight, mass * typical_p, FURTHER_DIGITS)
    inside = (near >= found) & (weight > 0)
    least = tl.min(tl.where(inside, ordered(x), NOTHING).to(tl.uint32))
    most = tl.max(tl.where(inside, ordered(x), 0).to(tl.uint32))
    # What is not listed lies below the bound: farther from the mean than the bound is, if that is
    # below the mean.
    bits = tl.where(bound >> 31 == 1, bound ^ 0x80000000, bound ^ 0xFFFFFFFF)
    edge = (bits.to(tl.uint32).to(tl.float32, bitcast=True) - largest) * scale
    outside = (edge <= mean) & (found > ordered(-tl.abs(edge - mean)))
    return (complete | outside) & (least <= most), least, most


@triton.jit
def _listed(bounds, counts, listed, row, parts, PARTS: tl.constexpr, ROOM: tl.constexpr):
    """A row's list: logits, which of them exist, and the bound from which on it is complete."""
    slot = tl.arange(0, PARTS * ROOM)
    part = slot // ROOM
    count = tl.load(counts + row * parts + part, part < parts, other=0)
    exists = slot % ROOM < count
    x = tl.load(listed + row * parts * ROOM + slot, part < parts, other=float("-inf"))
    x = tl.where(exists, x, float("-inf"))  # what nobody wrote may be anything
    bound = tl.load(bounds + row).to(tl.uint32, bitcast=True)
    return x, exists, tl.where(tl.max(count) > ROOM, NOTHING, bound).to(tl.uint32)


@triton.jit
def _filter(x, exists, bound, row, scale, filters, DIGITS: tl.constexpr, FURTHER: tl.constexpr):
    """(whether a row's list settles it, least, greatest key kept). `row`: (largest logit, sums of
    weights and of weights times scaled logits); `filters`: (top_k, top_p, min_p, typical_p,
    vocabulary)."""
    largest, mass, first = row
    top_k, top_p, min_p, typical_p, vocabulary = filters
    key = ordered(x)
    floor = tl.full((), 0, tl.uint32)
    ceiling = tl.full((), NOTHING, tl.uint32)
    settled = largest > float("-inf")  # nor NaN
    if (top_k > 0) & (top_k < vocabulary):
        number = tl.where(exists & (x == x), 1.0, 0.0)
        floor = search(key, number, top_k.to(tl.float32), DIGITS)
        settled &= floor >= bound
    if top_p < 1:
        weight = tl.where(exists, weigh(x, floor, largest, scale, 0.0, MASS)[1], 0.0)
        target = tl.where(floor >= bound, tl.sum(weight), mass) * top_p
        floor = search(key, weight, target, DIGITS)
        settled &= floor >= bound
    if FURTHER:
        floor = tl.maximum(floor, least_key(largest, scale, min_p))
        if typical_p < 1:
            everything = ordered(tl.full((), float("-inf"), tl.float32))
            settled &= (floor >= bound) | (floor <= everything)
            sound, floor, ceiling = _typical(
                x, floor, bound, mass, first, largest, scale, typical_p
            )  # fmt: skip
            settled &= sound
    return settled, floor, ceiling


@triton.jit(do_not_specialize_on_alignment=ANYWHERE)
def settle(
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    typical_ps,
    sums,
    bounds,
    counts,
    listed,
    settled_rows,
    thresholds,
    ceilings,
    vocabulary,
    parts,
    DIGITS: tl.constexpr,
    FURTHER: tl.constexpr,
    PARTS: tl.constexpr,
    ROOM: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Per random row: whether its list settles what is kept; then the least and (FURTHER) the
    greatest key kept. Who keeps all needs no list."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    if temperature <= 0:
        return
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    scale = log2_scale(temperature)
    floor = tl.full((), 0, tl.uint32)
    ceiling = tl.full((), NOTHING, tl.uint32)
    settled = tl.full((), 1, tl.int1)
    min_p, typical_p = 0.0, 1.0
    if FURTHER:
        min_p, typical_p = tl.load(min_ps + row), tl.load(typical_ps + row)
    if filtered(top_k, top_p, typical_ps, row, vocabulary, FURTHER):
        of_row = row_sums(sums, row, parts, scale, PARTS)
        x, exists, bound = _listed(bounds, counts, listed, row, parts, PARTS, ROOM)
        filters = top_k, top_p, min_p, typical_p, vocabulary
        settled, floor, ceiling = _filter(
            x, exists, bound, of_row, scale, filters, DIGITS, FURTHER
        )  # fmt: skip
    elif FURTHER:
        largest, _, _ = row_sums(sums, row, parts, scale, PARTS)
        settled = largest > float("-inf")
        floor = tl.maximum(floor, least_key(largest, scale, min_p))
    tl.store(settled_rows + row, settled.to(tl.int32))
    tl.store(thresholds + row, floor.to(tl.int32, bitcast=True))
    if FURTHER:
        tl.store(ceilings + row, ceiling.to(tl.int32, bitcast=True))
