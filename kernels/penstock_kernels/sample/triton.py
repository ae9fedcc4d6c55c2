"""Triton kernels of sample: thresholds of random rows, what each tile weighs, and the row's choice.

What is kept is found among the largest logits of a row, listed by many programs (`shortlist`). A
row of which too much is kept goes to one program, which finds thresholds on the 32 bits of a logit,
two bits a step from the top: the largest bit pattern at or above which the kept count or
probability still lies. It first looks only at the two largest logits of each lane of a pass over
the row, which it has in registers. A pass over the row then tells whether what it found is right
for all; if not, the search reads the row at every step. No sort.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import arrivals
from ..pdl import early_launch
from ..sizes import divided_up, power_of_two
from .bits import (
    LOG2_E,
    MASS,
    NUMBER,
    STAGES,
    logit_of,
    ordered,
    row_tile,
    search_pairs,
    search_row,
    splitmix,
    weigh,
)
from .further import further
from .noise import GROUP, GROUPS
from .shortlist import ANYWHERE, PART, ROOM, filtered, gather, log2_scale, settle, survey
from .shortlist import GROUP as LIST_GROUP

# Warps of a program that weighs a tile, a group of tokens: the fewer, the fewer instructions
# add up what their lanes found; and of one that chooses in it.
TILE_WARPS = 4
CHOICE_WARPS = 8

# Tokens of a step of a pass over a row, and its warps. One row with top_k and top_p: 308 us; with
# (4096, 16) 355, with (4096, 8) 412, with (16384, 32) 337.
PASS_TILE = 8192
PASS_WARPS = 32
LISTS = True  # whether rows are first tried by lists; bench/kernels.py compares
LIST_WARPS = 8
GATHER_WARPS = 16  # so many registers that a multiprocessor holds one program
# Rows of one call that are tried by lists, without and with typical_p and min_p. Without them,
# passes over the rows are as fast from 32 rows on (`bench/kernels.py sample --whole-rows`, H200).
MOST_LISTS = {False: 16, True: 1 << 14}

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
def _by_row(
    logits,
    temperature,
    top_k,
    top_p,
    min_ps,
    typical_ps,
    row,
    vocabulary,
    DIGITS: tl.constexpr,
    FURTHER: tl.constexpr,
    TILE: tl.constexpr,
):
    """The least and the greatest key that a row keeps, by passes over it."""
    first = tl.full((TILE,), float("-inf"), tl.float32)
    second = tl.full((TILE,), float("-inf"), tl.float32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        x = row_tile(logits, at, vocabulary, TILE)
        second = tl.maximum(second, tl.minimum(first, x))
        first = tl.maximum(first, x)
    largest = tl.max(first)
    tops = first, second
    scale = log2_scale(temperature)
    floor = tl.full((), 0, tl.uint32)
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
    ceiling = tl.full((), 0xFFFFFFFF, tl.uint32)
    if FURTHER:
        min_p = tl.load(min_ps + row)
        typical_p = tl.load(typical_ps + row)
        floor, ceiling = further(
            logits, vocabulary, floor, largest, scale, min_p, typical_p, TILE
        )  # fmt: skip
    return floor, ceiling


@triton.jit(do_not_specialize_on_alignment=ANYWHERE)
def _thresholds(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    typical_ps,
    settled_rows,
    thresholds,
    ceilings,
    stride,
    vocabulary,
    DIGITS: tl.constexpr,
    FURTHER: tl.constexpr,
    TILE: tl.constexpr,
    LISTED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Per random row that no list settled: the keys below and (FURTHER) above which tokens are
    dropped."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    done = temperature <= 0
    if LISTED:
        done |= tl.load(settled_rows + row, temperature > 0, other=1) == 1
    if done:
        return
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    floor = tl.full((), 0, tl.uint32)
    ceiling = tl.full((), 0xFFFFFFFF, tl.uint32)
    # A row that keeps all need not be read.
    needed = filtered(top_k, top_p, typical_ps, row, vocabulary, FURTHER)
    if FURTHER:
        needed |= tl.load(min_ps + row) > 0
    if needed:
        floor, ceiling = _by_row(
            logits + row * stride,
            temperature,
            top_k,
            top_p,
            min_ps,
            typical_ps,
            row,
            vocabulary,
            DIGITS,
            FURTHER,
            TILE,
        )
    tl.store(thresholds + row, floor.to(tl.int32, bitcast=True))
    if FURTHER:
        tl.store(ceilings + row, ceiling.to(tl.int32, bitcast=True))


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
    thresholds,
    ceilings,
    parts,
    stride,
    vocabulary,
    FURTHER: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Per tile: the largest logit, and relative to that what all weigh at temperature 1, and at a
    random row's own what is kept."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    x = row_tile(logits + row * stride, tile * TILE, vocabulary, TILE)
    peak = tl.max(x)
    below = x - tl.where(peak == float("-inf"), 0.0, peak)
    part = parts + (row * tl.num_programs(1) + tile) * 3
    tl.store(part, peak)
    tl.store(part + 1, tl.sum(tl.exp2(below * LOG2_E)))
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        weight = tl.exp2(below * log2_scale(temperature))
        kept = _kept(x, thresholds, ceilings, row, FURTHER)
        tl.store(part + 2, tl.sum(tl.where(kept, weight, 0.0)))


@triton.jit
def _kept(x, thresholds, ceilings, row, FURTHER: tl.constexpr):
    """Which of a row's logits are neither below its threshold nor (FURTHER) above its ceiling."""
    kept = x >= logit_of(tl.load(thresholds + row).to(tl.uint32, bitcast=True))
    if FURTHER:
        kept &= x <= logit_of(tl.load(ceilings + row).to(tl.uint32, bitcast=True))
    return kept


@triton.jit
def _choose_in_row(
    logits,
    temperatures,
    seeds,
    positions,
    thresholds,
    ceilings,
    parts,
    ids,
    logprobs,
    stride,
    vocabulary,
    tiles,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    FURTHER: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The row's token and its log-probability. First it takes a tile: that of the largest logit, or
    by a draw; then a token of that likewise."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    tile = tl.arange(0, BLOCK)
    exists = tile < tiles
    part = parts + (row * tiles + tile) * 3
    peak = tl.load(part, exists, other=float("-inf"))
    largest = tl.max(peak)
    temperature = tl.load(temperatures + row)
    score = peak
    if temperature > 0:
        mass = tl.load(part + 2, exists, other=0.0)
        below = tl.where(peak == largest, 0.0, (peak - largest) / temperature)
        number = tl.full((), GROUPS, tl.uint64) + tile.to(tl.uint64)
        noise = _gumbel(tl.load(seeds + row), tl.load(positions + row), number)
        weight = tl.log(tl.where(mass > 0, mass, 1.0)) + below + noise
        score = tl.where(mass > 0, weight, float("-inf"))
    taken = tl.min(tl.where(score == tl.max(score), tile, tiles - 1))
    token = taken * TILE + tl.arange(0, TILE)
    x = row_tile(logits, taken * TILE, vocabulary, TILE)
    ranked = x
    if temperature > 0:
        noise = _gumbel(tl.load(seeds + row), tl.load(positions + row), token)
        kept = _kept(x, thresholds, ceilings, row, FURTHER)
        ranked = tl.where(kept, (x - largest) / temperature + noise, float("-inf"))
    # The minimum is the lowest id of equals; it stays an id even where NaN equals nothing.
    chosen = tl.min(tl.where(ranked == tl.max(ranked), token, vocabulary - 1))
    total = tl.load(part + 1, exists, other=0)
    normaliser = largest + tl.log(tl.sum(total * tl.exp2((peak - largest) * LOG2_E)))
    tl.store(ids + row, chosen.to(tl.int64))
    tl.store(logprobs + row, tl.load(logits + chosen).to(tl.float32) - normaliser)


# Per row: temperature, top_k, top_p, min_p and typical_p.
Filters = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
# Of random rows: the least and the greatest keys that are kept.
Kept = tuple[Tensor, Tensor | None]


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
    more = min_p is not None
    parts = empty(torch.float32, tiles, 3)
    stride = logits.stride(0)
    early = early_launch(logits.device)
    if rows:
        filters = temperature, top_k, top_p, min_p, typical_p
        kept = empty(torch.int32), empty(torch.int32) if more else None
        listed = LISTS and rows <= MOST_LISTS[more]
        settled = try_lists(logits, filters, kept) if listed else None
        search_rows(logits, filters, kept, settled)
        read = logits, temperature
        _weigh_tile[(rows, tiles)](
            *read,
            *kept,
            parts,
            stride,
            vocabulary,
            more,
            GROUP,
            EARLY=early,
            launch_pdl=early,
            num_warps=TILE_WARPS,
        )
        _choose_in_row[(rows,)](
            *read,
            seed,
            position,
            *kept,
            parts,
            ids,
            logprobs,
            stride,
            vocabulary,
            tiles,
            GROUPS,
            BLOCK=power_of_two(tiles),
            FURTHER=more,
            TILE=GROUP,
            EARLY=early,
            launch_pdl=early,
            num_warps=CHOICE_WARPS,
        )
    return ids, logprobs


def try_lists(logits: Tensor, filters: Filters, kept: Kept) -> Tensor:
    """Fills `kept` of the random rows for which it returns 1, [S] int32; others' says nothing."""
    temperature, top_k, top_p, min_p, typical_p = filters
    rows, vocabulary = logits.shape
    parts, groups = divided_up(vocabulary, PART), PART // LIST_GROUP.value

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty((rows, *shape), dtype=dtype, device=logits.device)

    maxima, sums = empty(torch.float32, parts, groups), empty(torch.float32, parts, 3)
    bounds, counts = empty(torch.int32), empty(torch.int32, parts)
    listed, settled = empty(torch.float32, parts, ROOM), empty(torch.int32)
    early, further = early_launch(logits.device), min_p is not None
    options = {"FURTHER": further, "EARLY": early, "launch_pdl": early}
    read = logits, temperature, top_k, top_p, typical_p
    stride = logits.stride(0)
    survey[(rows, parts)](
        *read,
        maxima,
        sums,
        bounds,
        arrivals(logits.device, MOST_LISTS[True]),
        stride,
        vocabulary,
        GROUPS=power_of_two(parts * groups),
        PART=PART,
        num_warps=LIST_WARPS,
        **options,
    )
    gather[(rows, parts)](
        *read,
        bounds,
        counts,
        listed,
        stride,
        vocabulary,
        PART=PART,
        ROOM=ROOM,
        num_warps=GATHER_WARPS,
        **options,
    )
    settle[(rows,)](
        *filters,
        sums,
        bounds,
        counts,
        listed,
        settled,
        *kept,
        vocabulary,
        parts,
        DIGITS=DIGITS[logits.dtype],
        PARTS=power_of_two(parts),
        ROOM=ROOM,
        num_warps=LIST_WARPS,
        **options,
    )
    return settled


def search_rows(logits: Tensor, filters: Filters, kept: Kept, settled: Tensor | None) -> None:
    """Fills `kept` of random rows, unless they are settled, by passes over them."""
    early = early_launch(logits.device)
    _thresholds[(len(logits),)](
        logits,
        *filters,
        settled,
        *kept,
        logits.stride(0),
        logits.shape[1],
        DIGITS[logits.dtype],
        filters[3] is not None,
        PASS_TILE,
        LISTED=settled is not None,
        EARLY=early,
        launch_pdl=early,
        num_warps=PASS_WARPS,
    )
