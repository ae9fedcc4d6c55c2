"""Triton kernels that sort choices by expert, on the device.

Few choices every program reads, and places those of one expert (`place_expert`). Of many, every
chunk of choices counts its experts (`count_chunk`); then every chunk places its choices
(`place_chunk`): after those of lower experts, of earlier chunks, and earlier ones of its own. So
the order of an expert's choices is theirs. The same kernel writes the table of tiles: pieces of up
to ROWS choices of one expert.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_options, power_of_two
from ..route_experts.routing import Routed
from .experts import Experts, Matrices
from .plan import (
    CHUNK,
    COPIED_CHOICES,
    FEW_CHOICES,
    LARGE_CHUNK,
    LARGE_CHUNK_CHOICES,
    READ_COUNTS,
    most_tiles,
)

MOST_COLUMNS = 4096  # of a turn of a program that copies rows
TOGETHER = 4  # rows of an expert that a program copies at once
MOST_SHARES = 8  # programs that copy an expert's rows


@triton.jit
def _experts(ids, choice, count, first, EXPERTS: tl.constexpr, SIDE: tl.constexpr):
    """The places of experts among those here; SIDE of choices that are not for them."""
    expert = tl.load(ids + choice, choice < count, other=-1) - first
    here = (choice < count) & (expert >= 0) & (expert < EXPERTS)
    return tl.where(here, expert, SIDE)


@triton.jit(do_not_specialize=["count"])
def count_chunk(
    ids,
    counts,
    count,
    first,
    EXPERTS: tl.constexpr,
    SIDE: tl.constexpr,
    CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """counts [chunks, SIDE]: choices of each expert in each chunk. SIDE: a power of two."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    chunk = tl.program_id(0)
    expert = _experts(ids, chunk * CHUNK + tl.arange(0, CHUNK), count, first, EXPERTS, SIDE)
    each = tl.arange(0, SIDE)
    number = tl.sum((expert[:, None] == each[None, :]).to(tl.int32), 0)
    tl.store(counts + chunk * SIDE + each, number)


@triton.jit
def _totals(counts, chunk, chunks, SIDE: tl.constexpr, READ: tl.constexpr):
    """Choices of each expert [SIDE], and those of them in earlier chunks."""
    total = tl.zeros([SIDE], tl.int32)
    before = tl.zeros([SIDE], tl.int32)
    for start in range(0, chunks, READ):
        other = start + tl.arange(0, READ)[:, None]
        number = tl.load(
            counts + other * SIDE + tl.arange(0, SIDE)[None, :], other < chunks, other=0
        )
        total += tl.sum(number, 0)
        before += tl.sum(tl.where(other < chunk, number, 0), 0)
    return total, before


@triton.jit
def _write_tiles(tiles, at, total, begin, most, each, ROWS: tl.constexpr):
    """Tiles `at`, of experts `each` [1, SIDE] with `total` choices each, from `begin` on.

    There are as many tiles as choices, at most.
    """
    number_of_tiles = (total + ROWS - 1) // ROWS
    last_tile = tl.cumsum(number_of_tiles, 0)
    first_tile = (last_tile - number_of_tiles)[None, :]
    within = (at[:, None] >= first_tile) & (at[:, None] < last_tile[None, :])
    begin = begin[None, :]
    from_place = tl.sum(tl.where(within, begin - first_tile * ROWS, 0), 1) + at * ROWS
    end = tl.sum(tl.where(within, begin + total[None, :], 0), 1)
    tl.store(tiles + at, tl.sum(tl.where(within, each, 0), 1), at < most)
    tl.store(tiles + most + at, from_place, at < most)
    tl.store(tiles + 2 * most + at, tl.minimum(end, from_place + ROWS), at < most)
    if tl.program_id(0) == 0:
        tl.store(tiles + 3 * most, tl.sum(number_of_tiles, 0))


@triton.jit(do_not_specialize=["count", "chunks", "most"])
def place_chunk(
    ids,
    counts,
    order,
    places,
    tiles,
    count,
    chunks,
    most,
    first,
    EXPERTS: tl.constexpr,
    SIDE: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    READ: tl.constexpr,
    EARLY: tl.constexpr,
):
    """order [count]: choices sorted by expert, of those here; places [count]: where each choice is
    there, or -1; tiles [3, most] and one number more.

    A tile is (expert, its first place in `order`, the place after its last); the number of tiles
    comes after them. READ rows of counts are read at once. A program for each chunk.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    chunk = tl.program_id(0)
    choice = chunk * CHUNK + tl.arange(0, CHUNK)
    expert = _experts(ids, choice, count, first, EXPERTS, SIDE)
    each = tl.arange(0, SIDE)[None, :]
    own = expert[:, None] == each
    total, before = _totals(counts, chunk, chunks, SIDE, READ)
    begin = tl.cumsum(total, 0) - total

    # The same choices along both sides of a square.
    across = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    others = _experts(ids, across, count, first, EXPERTS, SIDE)
    earlier = (others == expert[:, None]) & (across < choice[:, None])
    rank = tl.sum(earlier.to(tl.int32), 1)
    place = rank + tl.sum(tl.where(own, (begin + before)[None, :], 0), 1)
    tl.store(order + place, choice, expert < SIDE)
    tl.store(places + choice, tl.where(expert < SIDE, place, -1), choice < count)
    _write_tiles(tiles, choice, total, begin, most, each, ROWS)


@triton.jit
def _copy_rows(
    x, ordered, x_stride, hidden, choice, place, begin, end, TOP_K: tl.constexpr,
    BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Copies rows of x to the places `begin` to `end`, this program's share of them.

    `place` of each choice; of those that are of other experts less than `begin`.
    """
    step = tl.num_programs(1) * TOGETHER
    for start in range(begin + tl.program_id(1) * TOGETHER, end, step):
        target = start + tl.arange(0, TOGETHER)[:, None]
        found = tl.where(place[None, :] == target, choice[None, :], 0)
        token = tl.max(found, 1)[:, None] // TOP_K
        for column in range(0, hidden, BLOCK):
            n = column + tl.arange(0, BLOCK)[None, :]
            live = (target < end) & (n < hidden)
            row = tl.load(x + token.to(tl.int64) * x_stride + n, live, other=0)
            tl.store(ordered + target.to(tl.int64) * hidden + n, row, live)


@triton.jit(do_not_specialize=["count", "most"])
def place_expert(
    ids,
    x,
    order,
    places,
    tiles,
    ordered,
    count,
    most,
    first,
    x_stride,
    hidden,
    EXPERTS: tl.constexpr,
    SIDE: tl.constexpr,
    CHOICES: tl.constexpr,
    ROWS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    TOGETHER: tl.constexpr,
    EARLY: tl.constexpr,
):
    """As `count_chunk` and `place_chunk`, of few choices: programs of one expert place its own.

    SIDE: a power of two, more than EXPERTS. BLOCK: also `ordered` [count, hidden], the rows of x of
    sorted choices, which the programs of an expert share; 0: one program for each expert.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    own = tl.program_id(0)
    choice = tl.arange(0, CHOICES)
    expert = _experts(ids, choice, count, first, EXPERTS, EXPERTS)
    number = tl.histogram(expert, SIDE)
    each = tl.arange(0, SIDE)
    number_of_tiles = tl.where(each < EXPERTS, (number + ROWS - 1) // ROWS, 0)
    begin = tl.sum(tl.where(each < own, number, 0), 0)
    total = tl.sum(tl.where(each == own, number, 0), 0)
    first_tile = tl.sum(tl.where(each < own, number_of_tiles, 0), 0)
    end = begin + total
    mine = expert == own
    place = tl.where(mine, begin + tl.cumsum(mine.to(tl.int32), 0), 0) - 1
    if BLOCK:
        _copy_rows(x, ordered, x_stride, hidden, choice, place, begin, end, TOP_K, BLOCK, TOGETHER)
        if tl.program_id(1) > 0:
            return
    tl.store(order + place, choice, mine)
    tl.store(places + choice, place, mine)
    # Choices serve as numbers of an expert's tiles too: there are no more tiles than choices.
    at = tiles + first_tile + choice
    from_place = begin + choice * ROWS
    live = choice * ROWS < total
    tl.store(at, own, live)
    tl.store(at + most, from_place, live)
    tl.store(at + 2 * most, tl.minimum(end, from_place + ROWS), live)
    if own == 0:
        tl.store(places + choice, -1, (expert == EXPERTS) & (choice < count))
        tl.store(tiles + 3 * most, tl.sum(number_of_tiles, 0))


@triton.jit
def spread_rows(
    x, places, out, x_stride, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """out [choices, hidden]: each row of x at the places of its token's choices, a token a
    program."""
    token = tl.program_id(0).to(tl.int64)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    for start in range(0, hidden, BLOCK):
        n = start + tl.arange(0, BLOCK)
        row = tl.load(x + token * x_stride + n, n < hidden, other=0)
        for turn in tl.static_range(TOP_K):
            place = tl.load(places + token * TOP_K + turn).to(tl.int64)
            tl.store(out + place * hidden + n, row, n < tl.where(place >= 0, hidden, 0))


@dataclass(frozen=True)
class Side:
    """Operands of one of the two products."""

    x: Tensor
    weight: Matrices
    bias: Tensor | None
    out: Tensor


Targets = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Tiled:
    """Choices sorted by expert, in tiles of rows."""

    rows: int
    """Of a tile."""
    most: int
    """Tiles that there may be."""
    top_k: int
    order: Tensor
    """[choices] int32; of those of other ranks' experts nothing."""
    places: Tensor
    """[choices] int32: where each choice is in `order`; -1: an expert of another rank."""
    tiles: Tensor
    """[3 most + 1] int32: see `sort.place_chunk`."""
    x: Tensor | None
    """[choices + rows, inputs]: rows in the order of places, the last ones unwritten; if asked for
    and if choices are few."""


def targets(tiled: Tiled, side: Side, choice_weights: Tensor | None) -> Targets:
    """What the end of a product writes and reads: outputs, biases, order, weights of choices. A
    kernel does not read what is not there, and gets any tensor."""
    bias = side.x if side.bias is None else side.bias
    return side.out, bias, tiled.order, tiled.order if choice_weights is None else choice_weights


def sort_choices(rows: int, routed: Routed, experts: Experts, x: Tensor | None = None) -> Tiled:
    """Launches the sort of choices by expert, in tiles of `rows`; of x too, if they are few."""
    ids, count = routed.ids, routed.ids.numel()
    most = most_tiles(count, experts.count, rows)
    order = torch.empty(count, dtype=torch.int32, device=ids.device)
    places = torch.empty_like(order)
    tiles = torch.empty(3 * most + 1, dtype=torch.int32, device=ids.device)
    tiled = Tiled(rows, most, routed.ids.shape[1], order, places, tiles, None)
    if count <= FEW_CHOICES:
        return _sort_few(tiled, routed, experts, x if count <= COPIED_CHOICES else None)
    chunk = CHUNK if count <= LARGE_CHUNK_CHOICES else LARGE_CHUNK
    chunks, side = divided_up(count, chunk), power_of_two(experts.count)
    common = {**early_options(ids.device), "EXPERTS": experts.count, "SIDE": side, "CHUNK": chunk}
    counts = torch.empty((chunks, side), dtype=torch.int32, device=ids.device)
    count_chunk[(chunks,)](ids, counts, count, experts.first, num_warps=4, **common)
    place_chunk[(chunks,)](
        ids,
        counts,
        order,
        places,
        tiles,
        count,
        chunks,
        most,
        experts.first,
        ROWS=rows,
        READ=max(1, READ_COUNTS // side),
        num_warps=max(4, chunk // 16),
        **common,
    )
    return tiled


def _sort_few(tiled: Tiled, routed: Routed, experts: Experts, x: Tensor | None) -> Tiled:
    """The tensors of `tiled`, filled by one launch."""
    ids, count = routed.ids, routed.ids.numel()
    ordered, shares = None, 1
    if x is not None:
        ordered = torch.empty((count + tiled.rows, x.shape[1]), dtype=x.dtype, device=x.device)
        shares = min(MOST_SHARES, divided_up(count, experts.count * TOGETHER))
    choices = max(32, power_of_two(count))
    place_expert[(experts.count, shares)](
        ids,
        x,
        tiled.order,
        tiled.places,
        tiled.tiles,
        ordered,
        count,
        tiled.most,
        experts.first,
        0 if x is None else x.stride(0),
        0 if x is None else x.shape[1],
        EXPERTS=experts.count,
        SIDE=power_of_two(experts.count + 1),
        CHOICES=choices,
        ROWS=tiled.rows,
        TOP_K=tiled.top_k,
        BLOCK=0 if x is None else min(MOST_COLUMNS // TOGETHER, power_of_two(x.shape[1])),
        TOGETHER=TOGETHER,
        num_warps=4 if choices <= CHUNK * 8 else 8,
        **early_options(ids.device),
    )
    return replace(tiled, x=ordered)


def ordered(x: Tensor, tiled: Tiled) -> Tensor:
    """Rows of x [T, hidden] in the order of places: [choices + rows, hidden], the last ones
    unwritten."""
    if tiled.x is not None:
        return tiled.x
    count, hidden = len(tiled.order), x.shape[1]
    out = torch.empty((count + tiled.rows, hidden), dtype=x.dtype, device=x.device)
    block = min(MOST_COLUMNS, power_of_two(hidden))
    spread_rows[(len(x),)](
        x,
        tiled.places,
        out,
        x.stride(0),
        hidden,
        TOP_K=tiled.top_k,
        BLOCK=block,
        num_warps=max(1, block // 512),
        **early_options(x.device),
    )
    return out
