"""Long contexts of few rows, for the Hopper kernel: split among programs and added up."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..device import divided_up, processors
from ..hopper import ROWS, barrier
from ..online_softmax import LOWEST

ROUNDS = gl.constexpr(4)  # of programs on all multiprocessors, at most, where contexts are split
LEAST = gl.constexpr(4)  # tiles of a split, at least
# What programs take before their first tile and after their last, and what adding up takes, in the
# time of a tile (1.75 us).
SETUP, ADDING = gl.constexpr(5), gl.constexpr(2)
MOST_SPLITS = 8  # of a long context
MOST_TOKENS = 2048  # of a launch that splits


@gluon.jit
def splits_of(items, tiles, PROGRAMS: gl.constexpr, SPLITS: gl.constexpr):
    """How many programs share the keys of an item, at most `tiles` tiles: the number that ends
    first, counted in the time that a tile takes, where PROGRAMS run at once."""
    used = gl.minimum(items, 1)  # 1, as what the loop may replace
    least = gl.cdiv(items, PROGRAMS) * (tiles + SETUP)
    for number in gl.static_range(2, SPLITS + 1):
        rounds = gl.cdiv(items * number, PROGRAMS)
        takes = rounds * (gl.cdiv(tiles, number) + SETUP) + ADDING
        fits = (items * number <= ROUNDS * PROGRAMS) & (tiles >= number * LEAST)
        better = fits & (takes < least)
        used = gl.where(better, number, used)
        least = gl.where(better, takes, least)
    return gl.maximum(used, 1)


@gluon.jit
def put_part(acc, peak, total, parts, peaks, part, D: gl.constexpr):
    """A warp group's sums and peaks, for `sum_parts`: written when this returns, and seen by others
    after the arrival that follows it."""
    LAYOUT: gl.constexpr = acc.type.layout
    row = part.to(gl.int64) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    gl.store(parts + (row * D)[:, None] + column[None, :], acc)
    gl.store(peaks + row * 2, gl.convert_layout(peak, gl.SliceLayout(1, LAYOUT)))
    gl.store(peaks + row * 2 + 1, gl.convert_layout(total, gl.SliceLayout(1, LAYOUT)))
    barrier()


@gluon.jit
def sum_parts(parts, peaks, first, used, LAYOUT: gl.constexpr, D: gl.constexpr):
    """(sums [ROWS, D], peaks [ROWS], sums of weights [ROWS]) over `used` splits, in their order.

    Their parts are `first` and, as a program has two warp groups, every second one after it.
    """
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    acc = gl.zeros([ROWS, D], gl.float32, LAYOUT)
    peak = gl.full([ROWS], LOWEST, gl.float32, gl.SliceLayout(1, LAYOUT))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, LAYOUT))
    for split in range(used):
        part = (first + 2 * split).to(gl.int64)
        row = part * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        some_peak = gl.load(peaks + row * 2, cache_modifier=".cg")
        some_total = gl.load(peaks + row * 2 + 1, cache_modifier=".cg")
        some = gl.load(parts + (row * D)[:, None] + column[None, :], cache_modifier=".cg")
        new_peak = gl.maximum(peak, some_peak)
        old, new = gl.exp2(peak - new_peak), gl.exp2(some_peak - new_peak)
        acc = acc * old[:, None] + some * new[:, None]
        total = total * old + some_total * new
        peak = new_peak
    return acc, peak, total


def most_splits(q: Tensor, kv_heads: int) -> int:
    """A launch's bound: MOST_SPLITS, or 1 where rows alone nearly fill the device.

    Each is a kernel of its own, compiled before the first request in steps whose tokens double from
    16 to MOST_TOKENS.
    """
    tokens, heads, _ = q.shape
    items = kv_heads * divided_up(tokens * (heads // kv_heads), 2 * ROWS.value)
    few = tokens <= MOST_TOKENS and items <= processors(q.device)
    return MOST_SPLITS if few else 1


def scratch_of(device: torch.device, size: int) -> tuple[Tensor, Tensor]:
    """What splits leave behind: sums [parts, ROWS, size] and (peak, total) [parts, ROWS, 2], where
    each program that may run has two parts."""
    parts = 2 * ROUNDS.value * processors(device)
    rows = (parts, ROWS.value)
    sums = torch.empty((*rows, size), dtype=torch.float32, device=device)
    return sums, torch.empty((*rows, 2), dtype=torch.float32, device=device)
