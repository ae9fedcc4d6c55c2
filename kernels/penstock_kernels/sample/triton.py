"""Triton kernels of sample: thresholds of random rows, what each tile weighs, and the row's choice.

Thresholds of top_k and top_p are found on the 32 bits of a logit, two bits a step from the top: the
largest bit pattern at or above which the kept count or probability still lies. The search first
looks only at the two largest logits of each lane of a pass over the row, which it has in registers.
A pass over the row then tells whether what it found is right for all; if not, the search reads the
row at every step. No sort.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..sizes import divided_up, power_of_two
from .bits import (
    MASS,
    NUMBER,
    STAGES,
    ordered,
    row_tile,
    search_pairs,
    search_row,
    splitmix,
    weigh,
)
from .further import further
from .noise import GROUP, GROUPS

# Warps of a program that weighs a tile, a group of tokens. On an H200, 256 greedy rows of 128,256
# bfloat16 logits: 61 us.
CHOICE_WARPS = 8

# Tokens of a step of a pass over a row, and its warps. One row with top_k and top_p: 308 us; with
# (4096, 16) 355, with (4096, 8) 412, with (16384, 32) 337.
PASS_TILE = 8192
PASS_WARPS = 32

# Two-bit digits in which the keys of a dtype can differ; further bits are all zero or all one.
DIGITS = {torch.bfloat16: 8, torch.float16: 10, torch.float32: 16}


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
def _thresholds(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    typical_ps,
    largests,
    thresholds,
    ceilings,
    stride,
    vocabulary,
    DIGITS: tl.constexpr,
    FURTHER: tl.constexpr,
    TILE: tl.constexpr,
):
    """Per random row: its largest logit, and the keys below and (FURTHER) above which tokens are
    dropped."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    if temperature <= 0:
        return
    logits += row * stride
    first = tl.full((TILE,), float("-inf"), tl.float32)
    second = tl.full((TILE,), float("-inf"), tl.float32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        second = tl.maximum(second, tl.minimum(first, x))
        first = tl.maximum(first, x)
    largest = tl.max(first)
    tops = first, second
    # Finite even for the tiniest temperature, so that the largest logit, times 0, weighs 1.
    scale = tl.minimum(1.4426950408889634 / temperature, 1.0e37)
    floor = tl.full((), 0, tl.uint32)
    top_k = tl.load(top_ks + row)
    complete = False  # whether `tops` hold all that is kept
    if (top_k > 0) & (top_k < vocabulary):
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
    top_p = tl.load(top_ps + row)
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
        floor = found
    if FURTHER:
        min_p = tl.load(min_ps + row)
        typical_p = tl.load(typical_ps + row)
        floor, ceiling = further(
            logits, vocabulary, floor, largest, scale, min_p, typical_p, TILE
        )  # fmt: skip
        tl.store(ceilings + row, ceiling.to(tl.int32, bitcast=True))
    tl.store(largests + row, largest)
    tl.store(thresholds + row, floor.to(tl.int32, bitcast=True))


@triton.jit
def _gumbel(seed, position, number):
    """Gumbel noise number `number`: minus the logarithm of noise.exponential."""
    seed_state = splitmix(seed.to(tl.uint64, bitcast=True), tl.full((), 0, tl.uint64))
    state = splitmix(seed_state, position.to(tl.uint64, bitcast=True))
    word = (splitmix(state, number.to(tl.uint64)) >> 32).to(tl.uint32)
    # A power of two times a float rounds nowhere, so both implementations see the same uniform.
    uniform = word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    uniform = tl.minimum(uniform, 0.99999994)
    # log1p(-u) without its library call: the rounding of 1 - u cancels in the quotient.
    rest = 1.0 - uniform
    curved = tl.where(rest == 1.0, 1.0, tl.log(rest) / tl.where(rest == 1.0, 1.0, rest - 1.0))
    return -tl.log(uniform * curved)


@triton.jit
def _weigh_tile(
    logits,
    temperatures,
    seeds,
    positions,
    largests,
    thresholds,
    ceilings,
    parts,
    choices,
    stride,
    vocabulary,
    GROUPS: tl.constexpr,
    FURTHER: tl.constexpr,
    TILE: tl.constexpr,
):
    """Per tile: the score of which the row takes the highest, the largest logit, the sum of
    exponentials below it; and the token of the largest logit."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    x = row_tile(logits + row * stride, tile * TILE, vocabulary, TILE)
    peak = tl.max(x)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp(x - safe))
    # The minimum is the lowest id of equals; it stays an id even where NaN equals nothing.
    choice = tl.min(tl.where(x == peak, token, vocabulary - 1))
    score = peak
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        threshold = tl.load(thresholds + row).to(tl.uint32, bitcast=True)
        weight = tl.exp((x - tl.load(largests + row)) / temperature)
        kept = ordered(x) >= threshold
        if FURTHER:
            kept &= ordered(x) <= tl.load(ceilings + row).to(tl.uint32, bitcast=True)
        mass = tl.sum(tl.where(kept, weight, 0.0))
        number = tl.full((), GROUPS, tl.uint64) + tile.to(tl.uint64)
        noise = _gumbel(tl.load(seeds + row), tl.load(positions + row), number)
        score = tl.where(mass > 0, tl.log(tl.where(mass > 0, mass, 1.0)), float("-inf")) + noise
    part = row * tl.num_programs(1) + tile
    tl.store(parts + part * 3, score)
    tl.store(parts + part * 3 + 1, peak)
    tl.store(parts + part * 3 + 2, total)
    tl.store(choices + part, choice)


@triton.jit
def _choose_in_row(
    logits,
    temperatures,
    seeds,
    positions,
    largests,
    thresholds,
    ceilings,
    parts,
    choices,
    ids,
    logprobs,
    stride,
    vocabulary,
    tiles,
    BLOCK: tl.constexpr,
    FURTHER: tl.constexpr,
    TILE: tl.constexpr,
):
    """The row's token and its log-probability; of a random row, a draw in the tile it takes."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    tile = tl.arange(0, BLOCK)
    exists = tile < tiles
    part = parts + (row * tiles + tile) * 3
    score = tl.load(part, exists, other=float("-inf"))
    taken = tl.min(tl.where(score == tl.max(score), tile, tiles - 1))
    chosen = tl.load(choices + row * tiles + taken)
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        token = taken * TILE + tl.arange(0, TILE)
        x = row_tile(logits, taken * TILE, vocabulary, TILE)
        threshold = tl.load(thresholds + row).to(tl.uint32, bitcast=True)
        noise = _gumbel(tl.load(seeds + row), tl.load(positions + row), token)
        noisy = (x - tl.load(largests + row)) / temperature + noise
        kept = ordered(x) >= threshold
        if FURTHER:
            kept &= ordered(x) <= tl.load(ceilings + row).to(tl.uint32, bitcast=True)
        noisy = tl.where(kept, noisy, float("-inf"))
        chosen = tl.min(tl.where(noisy == tl.max(noisy), token, vocabulary - 1))
    peak = tl.load(part + 1, exists, other=float("-inf"))
    total = tl.load(part + 2, exists, other=0)
    largest = tl.max(peak)
    normaliser = largest + tl.log(tl.sum(total * tl.exp(peak - largest)))
    tl.store(ids + row, chosen.to(tl.int64))
    tl.store(logprobs + row, tl.load(logits + chosen).to(tl.float32) - normaliser)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
    min_p: Tensor | None = None,
    typical_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the public function."""
    rows, vocabulary = logits.shape
    tiles = divided_up(vocabulary, GROUP)

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty((rows, *shape), dtype=dtype, device=logits.device)

    ids, logprobs = empty(torch.int64), empty(torch.float32)
    largests, thresholds = empty(torch.float32), empty(torch.int32)
    more = min_p is not None
    ceilings = empty(torch.int32) if more else None
    parts, choices = empty(torch.float32, tiles, 3), empty(torch.int32, tiles)
    stride = logits.stride(0)
    if rows:
        _thresholds[(rows,)](
            logits,
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            largests,
            thresholds,
            ceilings,
            stride,
            vocabulary,
            DIGITS[logits.dtype],
            more,
            PASS_TILE,
            num_warps=PASS_WARPS,
        )
        _weigh_tile[(rows, tiles)](
            logits,
            temperature,
            seed,
            position,
            largests,
            thresholds,
            ceilings,
            parts,
            choices,
            stride,
            vocabulary,
            GROUPS,
            more,
            GROUP,
            num_warps=CHOICE_WARPS,
        )
        _choose_in_row[(rows,)](
            logits,
            temperature,
            seed,
            position,
            largests,
            thresholds,
            ceilings,
            parts,
            choices,
            ids,
            logprobs,
            stride,
            vocabulary,
            tiles,
            BLOCK=power_of_two(tiles),
            FURTHER=more,
            TILE=GROUP,
            num_warps=CHOICE_WARPS,
        )
    return ids, logprobs
