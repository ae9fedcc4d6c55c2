"""Long contexts of few rows, for the Hopper kernel: split among programs and added up."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..device import processors
from ..hopper import ROWS
from ..online_softmax import LOWEST
from ..sizes import divided_up, power_of_two

ROUNDS = gl.constexpr(4)  # of programs on all multiprocessors, at most, where contexts are split
LEAST = gl.constexpr(4)  # tiles of a split, at least
# What programs take before their first tile and after their last, and what adding up takes, in the
# time of a tile (1.75 us).
SETUP, ADDING = gl.constexpr(5), gl.constexpr(4)
MOST_SPLITS = 8  # of a long context
MOST_TOKENS = 2048  # of a launch that splits


@gluon.jit
def splits_of(items, tiles, PROGRAMS: gl.constexpr, SPLITS: gl.constexpr):
    """How many programs share the keys of an item, which are so many tiles or fewer: what ends
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
def put_part(
    acc, peak, total, parts, peaks, which, place,
    GROUP: gl.constexpr, D: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Both sums and the peak of a split, for `add_splits`."""
    first_row, split = which
    start, count, _, _, heads, head = place
    LAYOUT: gl.constexpr = acc.type.layout
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    token = (start + row // GROUP).to(gl.int64)
    part = ((token * heads + head) * GROUP + row % GROUP) * SPLITS + split
    mine = row // GROUP < count
    gl.store(parts + (part * D)[:, None] + column[None, :], acc, mask=mine[:, None])
    gl.store(peaks + part * 2, gl.convert_layout(peak, gl.SliceLayout(1, LAYOUT)), mask=mine)
    gl.store(peaks + part * 2 + 1, gl.convert_layout(total, gl.SliceLayout(1, LAYOUT)), mask=mine)


@triton.jit(do_not_specialize=["sequences"])
def add_splits(
    parts, peaks, splits_used, query_start, sequences, out,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Up to ROWS query heads of one key head, of one token, where their keys were split.

    Heads of a token may lie in two tiles of rows, and those be split otherwise.
    """
    token = tl.program_id(0).to(tl.int64)
    if (token < tl.load(query_start)) | (token >= tl.load(query_start + sequences)):
        return
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    split = tl.arange(0, SPLITS)[:, None]
    place = (token * tl.num_programs(1) + tl.program_id(1)) * GROUP + row
    used = tl.load(splits_used + place, row < GROUP, other=1)
    exists = (row < GROUP)[None, :] & (split < used[None, :])
    part = place[None, :] * SPLITS + split
    peak = tl.load(peaks + part * 2, exists, other=LOWEST)
    weight = tl.exp2(peak - tl.max(peak, 0)[None, :])
    total = tl.sum(tl.load(peaks + part * 2 + 1, exists, other=1) * weight, 0)
    column = tl.arange(0, D)
    at = parts + part[:, :, None] * D + column[None, None, :]
    acc = tl.sum(tl.load(at, exists[:, :, None], other=0) * weight[:, :, None], 0)
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * D + column[None, :], result, (used > 1)[:, None])


def add_up(
    out: Tensor, scratch: tuple[Tensor, ...], query_start: Tensor, kv_heads: int, splits: int
) -> None:
    """Puts the sums of what was split into its places of `out` [T, Hq, D]; see `scratch_of`."""
    tokens, heads, size = out.shape
    group = heads // kv_heads
    rows = min(power_of_two(group), 8)
    add_splits[(tokens, kv_heads, divided_up(group, rows))](
        *scratch,
        query_start,
        len(query_start) - 1,
        out,
        GROUP=group,
        ROWS=rows,
        D=size,
        SPLITS=splits,
        num_warps=4,
    )


def most_splits(q: Tensor, kv_heads: int) -> int:
    """A launch's bound: MOST_SPLITS, or 1 where rows alone nearly fill the device.

    Each is a kernel of its own, compiled before the first request in steps whose tokens double from
    16 to MOST_TOKENS.
    """
    tokens, heads, _ = q.shape
    items = kv_heads * divided_up(tokens * (heads // kv_heads), 2 * ROWS.value)
    few = tokens <= MOST_TOKENS and items <= processors(q.device)
    return MOST_SPLITS if few else 1


def scratch_of(q: Tensor, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sums [T, Hq, splits, D], (peak, total) [T, Hq, splits, 2], and splits used [T, Hq]."""
    tokens, heads, size = q.shape
    parts = torch.empty((tokens, heads, splits, size), dtype=torch.float32, device=q.device)
    peaks = torch.empty((tokens, heads, splits, 2), dtype=torch.float32, device=q.device)
    return parts, peaks, torch.empty((tokens, heads), dtype=torch.int32, device=q.device)
