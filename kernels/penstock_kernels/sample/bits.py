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
    would, but for NaN; -inf or inf where the key is beyond that of all floats."""
    bits = tl.where(key >> 31 == 1, key ^ 0x80000000, key ^ 0xFFFFFFFF)
    inside = tl.where(key < 0xFF800000, bits.to(tl.float32, bitcast=True), float("inf"))
    return tl.where(key > 0x007FFFFF, inside, float("-inf"))


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
    """How many of three sums reach a target."""
    enough = (tl.sum(one) >= target).to(tl.uint32) + (tl.sum(two) >= target).to(tl.uint32)
    return enough + (tl.sum(three) >= target).to(tl.uint32)


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
