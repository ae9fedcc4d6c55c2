"""Triton: logits of a row as keys in their order, the search among them, and the integers behind
the random numbers."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from .. import online_softmax

LOG2_E = tl.constexpr(online_softmax.LOG2_E)
# Loads in flight in the passes over a row.
STAGES = tl.constexpr(4)


@triton.jit
def ordered(x):
    """Bits of float32 as uint32 in the order of the floats; both zeros are one."""
    bits = tl.where(x == 0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def logit_of(key):
    """The float32 that `ordered` gives this key, so that comparing floats does what comparing keys
    would, except for NaN; -inf or inf where the key is beyond that of all floats."""
    bits = tl.where(key >> 31 == 1, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    inside = tl.where(key < 0xFF800000, bits.to(tl.float32, bitcast=True), float("inf"))
    return tl.where(key > 0x007FFFFF, inside, float("-inf"))


@triton.jit
def limits(top_k, vocabulary):
    """Whether top_k may drop a token."""
    return (top_k > 0) & (top_k < vocabulary)


@triton.jit
def below_peak(x, peak):
    """Logits relative to their largest; -inf where all are."""
    return x - tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def weight_below(x, peak):
    """What tokens with logits x weigh at temperature 1, relative to the largest: the peak."""
    if tl.abs(peak) < 1e6:
        top = peak * LOG2_E
        rest = tl.fma(peak, LOG2_E, -top)  # what was rounded off, for all tokens alike
        mass = tl.sum(tl.exp2(tl.fma(x, LOG2_E, -top))) * tl.exp2(-rest)
    else:  # where that is too much to be multiplied
        mass = tl.sum(tl.exp2(below_peak(x, peak) * LOG2_E))
    return mass


@triton.jit
def keeps(x, floor, ceiling):
    """Which of the logits lie between two keys, these included; NaN does not."""
    return (x >= logit_of(floor)) & (x <= logit_of(ceiling))


@triton.jit
def log2_scale(temperature):
    """Finite even for the tiniest temperature, so that the largest logit, times 0, weighs 1."""
    return tl.minimum(LOG2_E / temperature, 1.0e37)


@triton.jit
def row_tile(logits, at, vocabulary, TILE: tl.constexpr):
    """Logits at .. at + TILE of a row in float32; -inf beyond its end."""
    column = at + tl.arange(0, TILE)
    return tl.load(logits + column, column < vocabulary, other=float("-inf")).to(tl.float32)


@triton.jit
def splitmix(state, index):
    """See noise.splitmix; on uint64."""
    z = state + (index + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


# What a search ranks tokens by, and what it adds up.
NUMBER = tl.constexpr(0)  # by logit; each counts 1
MASS = tl.constexpr(1)  # by logit; its probability up to a factor, of tokens not below `floor`
NEARNESS = tl.constexpr(2)  # by how near the scaled logit is to `mean`; its probability likewise


@triton.jit
def weigh(x, floor, largest, scale, mean, KIND: tl.constexpr):
    """(key, weight) of tokens with logits x. A `mean` is needed for NEARNESS alone."""
    key = ordered(x)
    if KIND == NUMBER:
        return key, tl.where(x == x, 1.0, 0.0)
    scaled = (x - largest) * scale
    if KIND == MASS:
        return key, tl.where(key >= floor, tl.exp2(scaled), 0.0)
    kept = (key >= floor) & (scaled > float("-inf"))
    near = tl.where(kept, -tl.abs(scaled - mean), float("-inf"))
    return ordered(near), tl.where(kept, tl.exp2(scaled), 0.0)


@triton.jit
def search_pairs(key_a, weight_a, key_b, weight_b, target, DIGITS: tl.constexpr):
    """The largest key at or above which tokens of weight `target` lie, of two tokens a lane."""
    found = tl.full((), 0, tl.uint32)
    step = tl.full((), 1 << 30, tl.uint32)
    for _digit in range(DIGITS):
        bound = found + step
        one = reaching(key_a, weight_a, bound) + reaching(key_b, weight_b, bound)
        bound += step
        two = reaching(key_a, weight_a, bound) + reaching(key_b, weight_b, bound)
        bound += step
        three = reaching(key_a, weight_a, bound) + reaching(key_b, weight_b, bound)
        found += reached(one, two, three, target) * step
        step = step >> 2
    return found


@triton.jit
def reaching(key, weight, bound):
    """The weights of tokens whose keys reach a bound."""
    return tl.where(key >= bound, weight, 0.0)


@triton.jit
def reached(one, two, three, target):
    """How many of three sums reach a target. They are one sum of vectors, which waits once."""
    nothing = tl.zeros_like(one) - 1.0
    sums = tl.sum(tl.join(tl.join(one, two), tl.join(three, nothing)), 0)
    return tl.sum((sums >= target).to(tl.int32)).to(tl.uint32)


@triton.jit
def first_step(span, least):
    """The largest step of two bits within a span of keys; less than `least` if there is none."""
    step = tl.full((), 1 << 30, tl.uint32)
    while (step > span) & (step >= least):
        step = step >> 2
    return step


@triton.jit
def search(key, weight, target, least, most, DIGITS: tl.constexpr):
    """The largest key of `least` to `most` at or above which tokens of weight `target` lie, or one
    below `least` (0 for a `least` of 0); two bits a digit, and DIGITS in a key."""
    unit: tl.constexpr = 1 << (32 - 2 * DIGITS)
    base = tl.where(least > 0, least - unit, 0).to(tl.uint32)
    above = tl.where(key >= base, key - base, 0).to(tl.uint32)
    found = tl.full((), 0, tl.uint32)
    step = first_step(most - base, unit)
    while step >= unit:
        one = reaching(above, weight, found + step)
        two = reaching(above, weight, found + 2 * step)
        three = reaching(above, weight, found + 3 * step)
        found += reached(one, two, three, target) * step
        step = step >> 2
    return base + found


@triton.jit
def search_row(
    logits,
    vocabulary,
    floor,
    largest,
    scale,
    mean,
    target,
    KIND: tl.constexpr,
    DIGITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The same of all tokens of a row, which is read once for each digit of two bits."""
    found = tl.full((), 0, tl.uint32)
    step = tl.full((), 1 << 30, tl.uint32)
    for _digit in range(DIGITS):
        one = tl.zeros((TILE,), tl.float32)
        two = tl.zeros((TILE,), tl.float32)
        three = tl.zeros((TILE,), tl.float32)
        for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
            x = row_tile(logits, at, vocabulary, TILE)
            key, weight = weigh(x, floor, largest, scale, mean, KIND)
            one += reaching(key, weight, found + step)
            two += reaching(key, weight, found + 2 * step)
            three += reaching(key, weight, found + 3 * step)
        found += reached(one, two, three, target) * step
        step = step >> 2
    return found
