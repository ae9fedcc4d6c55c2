"""Triton kernels that sort choices by expert, on the device.

Every chunk of choices counts its experts (`count_chunk`); then every chunk places its choices
(`place_chunk`): after those of lower experts, of earlier chunks, and earlier ones of its own. So
the order of an expert's choices is theirs. The same kernel writes the table of tiles: pieces of up
to ROWS choices of one expert.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_options, power_of_two
from ..route_experts.routing import Routed
from .experts import Experts, Matrices
from .plan import CHUNK, FEWEST_CHUNK, LARGE_CHUNK, LARGE_CHUNK_CHOICES, READ_COUNTS, most_tiles

COLUMNS = 1024  # of a turn of a program that copies a row,
MOST_COLUMNS = 4096  # and of one that copies a row to several places


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
def _totals(counts, own, chunk, chunks, SIDE: tl.constexpr, READ: tl.constexpr):
    """Choices of each expert [SIDE], and those of them in earlier chunks."""
    total = tl.zeros([SIDE], tl.int32)
    before = tl.zeros([SIDE], tl.int32)
    if READ == 0:
        total = tl.sum(own.to(tl.int32), 0)
    else:
        for start in range(0, chunks, READ):
            other = start + tl.arange(0, READ)[:, None]
            number = tl.load(
                counts + other * SIDE + tl.arange(0, SIDE)[None, :], other < chunks, other=0
            )
            total += tl.sum(number, 0)
            before += tl.sum(tl.where(other < chunk, number, 0), 0)
    return total, before


@triton.jit
def _copy_row(x, out, x_stride, choice, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """The row of x of a choice's token; nothing for a choice of -1."""
    place = tl.program_id(0).to(tl.int64)
    columns = tl.where(choice >= 0, hidden, 0)
    source = x + (choice // TOP_K).to(tl.int64) * x_stride
    for start in range(0, columns, BLOCK):
        n = start + tl.arange(0, BLOCK)
        row = tl.load(source + n, n < hidden, other=0)
        tl.store(out + place * hidden + n, row, n < hidden)


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
    x,
    order,
    places,
    tiles,
    ordered,
    count,
    chunks,
    most,
    first,
    x_stride,
    hidden,
    EXPERTS: tl.constexpr,
    SIDE: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    READ: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """order [count]: choices sorted by expert, of those here; places [count]: where each choice is
    there, or -1; tiles [3, most] and one number more.

    A tile is (expert, its first place in `order`, the place after its last); the number of tiles
    comes after them. READ rows of counts are read at once; 0: there is one chunk, not counted.
    BLOCK: also `ordered` [count, hidden], the rows of x of sorted choices, one a program; all
    programs sort the one chunk. 0: a program for each chunk.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    chunk = 0 if BLOCK else tl.program_id(0)
    choice = chunk * CHUNK + tl.arange(0, CHUNK)
    expert = _experts(ids, choice, count, first, EXPERTS, SIDE)
    each = tl.arange(0, SIDE)[None, :]
    own = expert[:, None] == each
    total, before = _totals(counts, own, chunk, chunks, SIDE, READ)
    begin = tl.cumsum(total, 0) - total

    # The same choices along both sides of a square.
    across = chunk * CHUNK + tl.arange(0, CHUNK)[None, :]
    others = _experts(ids, across, count, first, EXPERTS, SIDE)
    earlier = (others == expert[:, None]) & (across < choice[:, None])
    rank = tl.sum(earlier.to(tl.int32), 1)
    place = rank + tl.sum(tl.where(own, (begin + before)[None, :], 0), 1)
    if BLOCK:
        mine = (expert < SIDE) & (place == tl.program_id(0))
        own_choice = tl.max(tl.where(mine, choice, -1), 0)
        _copy_row(x, ordered, x_stride, own_choice, hidden, TOP_K, BLOCK)
        if tl.program_id(0) > 0:
            return
    tl.store(order + place, choice, expert < SIDE)
    tl.store(places + choice, tl.where(expert < SIDE, place, -1), choice < count)
    _write_tiles(tiles, choice, total, begin, most, each, ROWS)


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
    and if there is one chunk."""


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
    chunk = FEWEST_CHUNK if count <= FEWEST_CHUNK else CHUNK
    if count > LARGE_CHUNK_CHOICES:
        chunk = LARGE_CHUNK
    chunks, side = divided_up(count, chunk), power_of_two(experts.count)
    common = {**early_options(ids.device), "EXPERTS": experts.count, "SIDE": side, "CHUNK": chunk}
    counts = ids
    if chunks > 1:
        counts = torch.empty((chunks, side), dtype=torch.int32, device=ids.device)
        count_chunk[(chunks,)](ids, counts, count, experts.first, num_warps=4, **common)
    ordered = None
    if x is not None and chunks == 1:
        ordered = torch.empty((count + rows, x.shape[1]), dtype=x.dtype, device=ids.device)
    place_chunk[(chunks if ordered is None else count,)](
        ids,
        counts,
        x,
        order,
        places,
        tiles,
        ordered,
        count,
        chunks,
        most,
        experts.first,
        0 if x is None else x.stride(0),
        0 if x is None else x.shape[1],
        ROWS=rows,
        READ=max(1, READ_COUNTS // side) if chunks > 1 else 0,
        TOP_K=routed.ids.shape[1],
        BLOCK=0 if ordered is None else COLUMNS,
        num_warps=max(4, chunk // 16),
        **common,
    )
    return Tiled(rows, most, routed.ids.shape[1], order, places, tiles, ordered)


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
