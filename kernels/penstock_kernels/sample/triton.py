"""Triton kernels of sample: one that weighs all tiles of all rows, and one that chooses in a row.

Of a row whose filters may drop tokens, a program of the first kernel lists the largest logits of a
part, and the second finds among few listed tokens what is kept (`shortlist`). A third
kernel with more warps handles rows with longer lists; rows that keep more than is listed go through
passes over the row there (`passes`).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_launch, power_of_two
from .bits import LOG2_E, below_peak, keeps, log2_scale, row_tile, splitmix, weight_below
from .noise import GROUP, GROUPS
from .passes import masses_by_passes, thresholds_by_passes
from .shortlist import FIELDS, ROOM, filtering, filters_of, list_part, settle

# Warps of a program that weighs a tile, a group of tokens: the fewer, the fewer instructions
# add up what their lanes found; and of one that chooses in a row.
TILE_WARPS = 4
CHOICE_WARPS = 8
# At most, without and with min_p and typical_p: fewer programs at a time would not keep the memory
# busy, and fewer registers would not hold what these two add up.
TILE_REGISTERS = {False: 64, True: 80}

# Most tokens of a list that few warps search: in all, and of each part.
FEW_IN_ALL, FEW_OF_A_PART = 1024, 32
# Tiles whose masses are added up together, of few listed tokens and of many.
FEW_CHUNK, MANY_CHUNK = 8, 4

# Tokens of a step of a pass over a row, and its warps. One row with top_k and top_p: 308 us; with
# (4096, 16) 355, with (4096, 8) 412, with (16384, 32) 337.
PASS_TILE = 8192
PASS_WARPS = 32

# Two-bit digits in which the keys of a dtype can differ; further bits are all zero or all one.
DIGITS = {torch.bfloat16: 8, torch.float16: 10, torch.float32: 16}


@triton.jit
def _noise_state(seed, position):
    """What a row's random numbers have in common."""
    state = splitmix(seed.to(tl.uint64, bitcast=True), tl.full((), 0, tl.uint64))
    return splitmix(state, position.to(tl.uint64, bitcast=True))


@triton.jit
def _gumbel(state, number):
    """Gumbel noise number `number`: minus the logarithm of noise.exponential."""
    word = (splitmix(state, number.to(tl.uint64)) >> 32).to(tl.uint32)
    # A power of two times a float rounds nowhere, so both implementations see the same uniform.
    uniform = word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    uniform = tl.minimum(uniform, 0.99999994)
    # log1p(-u) without its library call: the rounding of 1 - u cancels in the quotient.
    rest = 1.0 - uniform
    curved = tl.where(rest == 1.0, 1.0, tl.log(rest) / tl.where(rest == 1.0, 1.0, rest - 1.0))
    return -tl.log(uniform * curved)


@triton.jit(do_not_specialize=["apart"])
def _weigh(
    logits,
    slots,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    typical_ps,
    parts,
    bounds,
    counts,
    listed,
    stride,
    apart,
    vocabulary,
    HAS_MIN_P: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Fields of a tile, or of a part of a filtered row, for which it also makes a list."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    tile, tiles = tl.program_id(1), tl.num_programs(1)
    logits += row * stride
    fields = parts + (row * tiles + tile) * FIELDS
    slot = tl.load(slots + row)
    temperature = tl.load(temperatures + slot)
    filters = filters_of(slot, top_ks, top_ps, min_ps, typical_ps, HAS_MIN_P)
    if (temperature > 0) & filtering(filters, vocabulary):
        lists = bounds, counts, listed
        list_part(
            logits, apart, row, tile, tiles, vocabulary, temperature, filters[0], fields, lists,
            HAS_MIN_P, TILE,
        )  # fmt: skip
    else:
        x = row_tile(logits, tile * TILE, vocabulary, TILE)
        peak = tl.max(x)
        tl.store(fields, peak)
        tl.store(fields + 1, weight_below(x, peak))
        if temperature > 0:
            scaled = below_peak(x, peak) * log2_scale(temperature)
            tl.store(fields + 2, tl.sum(tl.exp2(scaled)))


@triton.jit
def _choose_token(
    logits, temperature, state, kept, parts, tiles, vocabulary, ids, logprobs, filtered,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A row's token and its log-probability. First it takes a tile: that of the largest logit, or
    by a draw; then a token of that likewise. `kept`: (least, greatest key); of a row that is
    `filtered`, tiles are weighed relative to its largest logit."""
    floor, ceiling = kept
    tile = tl.arange(0, BLOCK)
    exists = tile < tiles
    fields = parts + tile * FIELDS
    peak = tl.load(fields, exists, other=float("-inf"))
    largest = tl.max(peak)
    score = peak
    if temperature > 0:
        mass = tl.load(fields + 2, exists, other=0.0)
        below = tl.where(peak == largest, 0.0, (peak - largest) / temperature)
        if filtered:
            below = tl.zeros_like(below)
        number = tl.full((), GROUPS, tl.uint64) + tile.to(tl.uint64)
        noise = _gumbel(state, number)
        weight = tl.log(tl.where(mass > 0, mass, 1.0)) + below + noise
        score = tl.where(mass > 0, weight, float("-inf"))
    taken = tl.min(tl.where(score == tl.max(score), tile, tiles - 1))
    token = taken * TILE + tl.arange(0, TILE)
    x = row_tile(logits, taken * TILE, vocabulary, TILE)
    ranked = x
    if temperature > 0:
        noise = _gumbel(state, token)
        drawn = (x - largest) / temperature + noise
        ranked = tl.where(keeps(x, floor, ceiling), drawn, float("-inf"))
    # The minimum is the lowest id of equals; it stays an id even where NaN equals nothing.
    chosen = tl.min(tl.where(ranked == tl.max(ranked), token, vocabulary - 1))
    total = tl.load(fields + 1, exists, other=0)
    normaliser = largest + tl.log(tl.sum(total * tl.exp2((peak - largest) * LOG2_E)))
    tl.store(ids, chosen.to(tl.int64))
    tl.store(logprobs, tl.load(logits + chosen).to(tl.float32) - normaliser)


@triton.jit
def _store_thresholds(settled_rows, floors, ceilings, row, settled, floor, ceiling):
    """What was found of a row."""
    tl.store(settled_rows + row, settled.to(tl.int32))
    tl.store(floors + row, floor.to(tl.int32, bitcast=True))
    tl.store(ceilings + row, ceiling.to(tl.int32, bitcast=True))


@triton.jit
def _choose(
    logits,
    slots,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    typical_ps,
    seeds,
    positions,
    parts,
    bounds,
    counts,
    listed,
    settled_rows,
    floors,
    ceilings,
    ids,
    logprobs,
    stride,
    vocabulary,
    tiles,
    HAS_MIN_P: tl.constexpr,
    DIGITS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Per row: whether short lists settle it; if so, its choice."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    parts += row * tiles * FIELDS
    slot = tl.load(slots + row)
    temperature = tl.load(temperatures + slot)
    filters = filters_of(slot, top_ks, top_ps, min_ps, typical_ps, HAS_MIN_P)
    filtered = (temperature > 0) & filtering(filters, vocabulary)
    settled = tl.full((), 1, tl.int1)
    floor, ceiling = tl.full((), 0, tl.uint32), tl.full((), 0xFFFFFFFF, tl.uint32)
    if filtered:
        lists = bounds, counts, listed
        scale = log2_scale(temperature)
        settled, floor, ceiling = settle(
            logits + row * stride, parts, lists, row, tiles, scale, filters, vocabulary, DIGITS,
            BLOCK, -1, FEW, CHUNK, TILE,
        )  # fmt: skip
    _store_thresholds(settled_rows, floors, ceilings, row, settled, floor, ceiling)
    if settled:
        state = _noise_state(tl.load(seeds + slot), tl.load(positions + row))
        _choose_token(
            logits + row * stride, temperature, state, (floor, ceiling), parts, tiles, vocabulary,
            ids + row, logprobs + row, filtered, GROUPS, BLOCK, TILE,
        )  # fmt: skip


@triton.jit
def _choose_rest(
    logits,
    slots,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    typical_ps,
    seeds,
    positions,
    parts,
    bounds,
    counts,
    listed,
    settled_rows,
    floors,
    ceilings,
    ids,
    logprobs,
    stride,
    vocabulary,
    tiles,
    HAS_MIN_P: tl.constexpr,
    DIGITS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    PASS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Per row that short lists do not settle: whether longer ones do, and its choice."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    if tl.load(settled_rows + row) == 0:
        logits += row * stride
        parts += row * tiles * FIELDS
        slot = tl.load(slots + row)
        temperature = tl.load(temperatures + slot)
        scale = log2_scale(temperature)
        filters = filters_of(slot, top_ks, top_ps, min_ps, typical_ps, HAS_MIN_P)
        lists = bounds, counts, listed
        settled, floor, ceiling = settle(
            logits, parts, lists, row, tiles, scale, filters, vocabulary, DIGITS,
            BLOCK, FEW, ROOM, CHUNK, TILE,
        )  # fmt: skip
        if not settled:
            largest, floor, ceiling = thresholds_by_passes(
                logits, filters, scale, vocabulary, DIGITS, HAS_MIN_P, PASS
            )  # fmt: skip
            masses_by_passes(
                logits, parts, tiles, vocabulary, largest, scale, floor, ceiling, TILE
            )  # fmt: skip
            tl.debug_barrier()
        _store_thresholds(settled_rows, floors, ceilings, row, settled, floor, ceiling)
        state = _noise_state(tl.load(seeds + slot), tl.load(positions + row))
        _choose_token(
            logits, temperature, state, (floor, ceiling), parts, tiles, vocabulary, ids + row,
            logprobs + row, True, GROUPS, BLOCK, TILE,
        )  # fmt: skip


# The slot of each row; per slot: temperature, top_k, top_p, min_p and typical_p.
Filters = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
# Per row: whether it is settled without passes over it, then the least and the greatest keys kept.
RowThresholds = tuple[Tensor, Tensor, Tensor]


def sample(
    logits: Tensor,
    slots: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
    min_p: Tensor | None = None,
    typical_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the public function."""
    ids, logprobs, _ = choose(
        logits, (slots, temperature, top_k, top_p, min_p, typical_p), (seed, position)
    )
    return ids, logprobs


def choose(
    logits: Tensor, filters: Filters, draw: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, RowThresholds]:
    """Ids, log-probabilities, and what was found of each row; `draw` are (seed per slot,
    position per row)."""
    rows, vocabulary = logits.shape
    tiles = divided_up(vocabulary, GROUP)

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty((rows, *shape), dtype=dtype, device=logits.device)

    ids, logprobs = empty(torch.int64), empty(torch.float32)
    found = empty(torch.int32), empty(torch.int32), empty(torch.int32)
    parts = empty(torch.float32, tiles, FIELDS.value)
    lists = (
        empty(torch.int32, tiles),
        empty(torch.int32, tiles),
        empty(torch.int32, tiles, ROOM.value),
    )
    early, has_min_p = early_launch(logits.device), filters[4] is not None
    stride = logits.stride(0)
    if rows:
        options = {
            "HAS_MIN_P": has_min_p,
            "TILE": GROUP,
            "EARLY": early,
            "launch_pdl": early,
        }
        block = power_of_two(tiles)
        choice = {
            "DIGITS": DIGITS[logits.dtype],
            "GROUPS": GROUPS,
            "BLOCK": block,
            "FEW": min(max(FEW_IN_ALL // block, FEW_OF_A_PART), ROOM.value),
            **options,
        }
        _weigh[(rows, tiles)](
            logits,
            *filters,
            parts,
            *lists,
            stride,
            logits.stride(1),
            vocabulary,
            num_warps=TILE_WARPS,
            maxnreg=TILE_REGISTERS[has_min_p],
            **options,
        )
        read = logits, *filters, *draw, parts, *lists
        written = *found, ids, logprobs
        _choose[(rows,)](
            *read,
            *written,
            stride,
            vocabulary,
            tiles,
            CHUNK=FEW_CHUNK,
            num_warps=CHOICE_WARPS,
            **choice,
        )
        _choose_rest[(rows,)](
            *read,
            *written,
            stride,
            vocabulary,
            tiles,
            CHUNK=MANY_CHUNK,
            PASS=PASS_TILE,
            num_warps=PASS_WARPS,
            **choice,
        )
    return ids, logprobs, found
