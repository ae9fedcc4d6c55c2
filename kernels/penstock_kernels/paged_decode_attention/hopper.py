"""Kernel of paged_decode_attention for Hopper GPUs, in Gluon: equal shares, a copying warp ahead.

The tiles of keys of all (sequence, key head) pairs, one after another, are cut into equal shares,
one for each of a fixed number of resident programs: the lengths on the device decide, the launch
knows shapes alone (see `shares`). In a program one warp copies tiles, block by block, into a ring
and goes on with the next pair while a warp group still sums up the last: memory never waits. Of a
pair that several programs share, each leaves its part, and who comes last adds them up in their
order.

The warp group's products have keys, or columns of values, for rows and a group's query heads for
columns: 8 columns are enough, but rows must be 64. With heads for rows most of a product would be
padding, which costs power, and so time where a GPU is at its limit: 256 sequences of 1,100 tokens
took 198 mJ instead of 183, and steps of them for seconds 17.57 ms instead of 16.75 (an 8B model,
one H200).

The kernel may start while the one that makes queries still runs (see `pdl`): lengths, tables and
older keys and values are of earlier kernels, so only who reads queries or writes waits. It does not
let the next one start early: with that, a step of one sequence of an 8B model takes 4.25 ms instead
of 3.94.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
)
from triton.language.extra.cuda import gdc_wait

from ..device import arrivals, early_launch, power_of_two, processors
from ..hopper import ATOM, Rule, as_blocks, barrier, blocks_of, fits, make_bars
from ..online_softmax import LOG2_E, LOWEST, first_seen, with_sink
from .hopper_copy import copy_share
from .shares import begin_of, owner_of, part_at, share_of, tiles_in
from .splits import PAIRS

Memory = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
GREATEST = 16  # query heads of a group, at most
SUMMED = gl.constexpr(8)  # parts that are read together when they are summed up


@gluon.jit
def rotation(angles, column, D: gl.constexpr):
    """(cosines, signed sines, the columns that they mix in) of `column` of a head."""
    HALF: gl.constexpr = D // 2
    cos = gl.load(angles + column % HALF)
    sin = gl.load(angles + HALF + column % HALF)
    other = gl.where(column < HALF, column + HALF, column - HALF)
    return cos, gl.where(column < HALF, -sin, sin), other


@gluon.jit
def put_queries(x, angles, queries, GROUP: gl.constexpr, HEADS: gl.constexpr, D: gl.constexpr):
    """The rotated query heads at pointers x [HEADS], into shared memory."""
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    live = (gl.arange(0, HEADS, gl.SliceLayout(1, L)) < GROUP)[:, None]
    for half in gl.static_range(D // ATOM):
        column = half * ATOM + gl.arange(0, ATOM, gl.SliceLayout(0, L))
        cos, sin, other = rotation(angles, column, D)
        straight = gl.load(x[:, None] + column[None, :], mask=live, other=0).to(gl.float32)
        crossed = gl.load(x[:, None] + other[None, :], mask=live, other=0).to(gl.float32)
        turned = straight * cos[None, :] + crossed * sin[None, :]
        queries.index(half).store(turned.to(queries.dtype))


@gluon.jit
def _put_newest(
    key, value, angles, target, value_offset, writes, rings, at, mine,
    D: gl.constexpr, STEP: gl.constexpr, STORED: gl.constexpr,
):  # fmt: skip
    """The newest key and value into row `mine` of their blocks in the ring, and into the cache.

    With STORED they are there already.

    Zeros go to the rows behind, which may hold anything, NaN included, that a weight of 0 would not
    silence. Block `at` holds the first ATOM columns, the one STEP further the next.
    """
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = gl.arange(0, rings[0].shape[1], gl.SliceLayout(1, L))
    for half in gl.static_range(D // ATOM):
        if STORED:
            for kind in gl.static_range(2):
                block = rings[kind].index(at + half * STEP)
                block.store(gl.where((row <= mine)[:, None], block.load(L), 0.0))
        else:
            column = half * ATOM + gl.arange(0, ATOM, gl.SliceLayout(0, L))
            cos, sin, other = rotation(angles, column, D)
            crossed = gl.load(key + other).to(gl.float32) * sin
            new_key = (gl.load(key + column).to(gl.float32) * cos + crossed).to(rings[0].dtype)
            new_value = gl.load(value + column)
            if writes:
                gl.store(target + column, new_key)
                gl.store(target + value_offset + column, new_value)
            for kind in gl.static_range(2):
                block = rings[kind].index(at + half * STEP)
                newest = new_key if kind == 0 else new_value
                kept = gl.where((row < mine)[:, None], block.load(L), 0.0)
                block.store(gl.where((row == mine)[:, None], newest[None, :], kept))
    fence_async_shared()
    barrier()


@gluon.jit
def _sum_parts(
    parts, peaks, out, sinks, owners, start, total, programs,
    GROUP: gl.constexpr, D: gl.constexpr, SINKS: gl.constexpr,
):  # fmt: skip
    """Adds up what programs owners[0] .. owners[1] have of the pair at `start`, into rows `out`."""
    GROUP_ROWS: gl.constexpr = triton.next_power_of_2(GROUP)
    L: gl.constexpr = gl.BlockedLayout([1, D // 32], [1, 32], [4, 1], [1, 0])
    row = gl.arange(0, GROUP_ROWS, gl.SliceLayout(1, L))
    column = gl.arange(0, D, gl.SliceLayout(0, L))
    acc = gl.zeros([GROUP_ROWS, D], gl.float32, L)
    peak = gl.full([GROUP_ROWS], LOWEST, gl.float32, gl.SliceLayout(1, L))
    weight_sum = gl.zeros([GROUP_ROWS], gl.float32, gl.SliceLayout(1, L))
    for owner in range(owners[0], owners[1] + 1, SUMMED):
        for i in gl.static_range(SUMMED):
            program = owner + i
            live = (row < GROUP) & (program <= owners[1])
            later = gl.where(begin_of(program, total, programs) < start, 1, 0)
            part = (program * 2 + later) * GROUP + row
            some_peak = gl.load(peaks + part * 2, mask=live, other=LOWEST, cache_modifier=".cg")
            some_sum = gl.load(peaks + part * 2 + 1, mask=live, other=0, cache_modifier=".cg")
            pointers = parts + (part * D)[:, None] + column[None, :]
            some = gl.load(pointers, mask=live[:, None], other=0, cache_modifier=".cg")
            new_peak = gl.maximum(peak, some_peak)
            old, new = gl.exp2(peak - new_peak), gl.exp2(some_peak - new_peak)
            acc = acc * old[:, None] + some * new[:, None]
            weight_sum = weight_sum * old + some_sum * new
            peak = new_peak
    weight_sum = with_sink(weight_sum, peak, sinks, row, row < GROUP, SINKS)
    result = (acc / weight_sum[:, None]).to(out.dtype.element_ty)
    gl.store(out + row[:, None] * D + column[None, :], result, mask=(row < GROUP)[:, None])


@gluon.jit
def put_pair(
    sums, outs, pair, owners, span, GROUP: gl.constexpr, D: gl.constexpr, SINKS: gl.constexpr
):
    """Writes a pair's result, or this program's part of it; of several, the last one adds them up.

    `sums` = (of values [D, HEADS], peaks, of weights), `pair` = (its number, its key head),
    `owners` = its first and its last program, `span` = (where it begins, all places, programs,
    1 if this program has an earlier pair).
    """
    acc, peak, weight_sum = sums
    out, parts, peaks, arrived, sinks = outs
    number, head = pair
    owner, last_owner = owners
    start, total, programs, later = span
    LAYOUT: gl.constexpr = acc.type.layout
    column = gl.arange(0, D, gl.SliceLayout(1, LAYOUT))
    query_head = gl.arange(0, acc.shape[1], gl.SliceLayout(0, LAYOUT))
    mine = query_head < GROUP
    own_sinks = sinks + head * GROUP
    if owner == last_owner:
        weight_sum = with_sink(weight_sum, peak, own_sinks, query_head, mine, SINKS)
        whole = gl.where(weight_sum > 0, weight_sum, 1)
        result = (acc / whole[None, :]).to(out.dtype.element_ty)
        targets = out + ((number * GROUP + query_head) * D)[None, :] + column[:, None]
        gl.store(targets, result, mask=mine[None, :])
    else:
        part = (gl.program_id(0) * 2 + later) * GROUP + query_head
        gl.store(parts + (part * D)[None, :] + column[:, None], acc, mask=mine[None, :])
        gl.store(peaks + part * 2, peak, mask=mine)
        gl.store(peaks + part * 2 + 1, weight_sum, mask=mine)
        barrier()  # all of the part is written before it is announced
        others = gl.atomic_add(arrived + number, 1, sem="acq_rel")
        if others == last_owner - owner:
            gl.store(arrived + number, 0)  # for the next launch
            _sum_parts(
                parts, peaks, out + number * GROUP * D, own_sinks, owners, start, total, programs,
                GROUP, D, SINKS,
            )  # fmt: skip


@gluon.jit
def _sum(
    qkv, angles, slot_mapping, cache, kv_len, outs, rings, bars, operands, share, kv_heads, window,
    scale, strides,
    GROUP: gl.constexpr, HEADS: gl.constexpr, BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr,
    D: gl.constexpr, STAGES: gl.constexpr, ALIGNED: gl.constexpr, SINKS: gl.constexpr,
    STORED: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """The warp group: softmax and sums over all tiles of this program's share."""
    q, k, v = qkv
    cos_sin, angle_stride = angles
    full, empty = bars
    key_tiles, value_tiles, key_blocks, value_blocks = rings
    query_blocks, queries, weights = operands
    begin, end, sequence, base, total, programs, extra, _ = share
    PAGES: gl.constexpr = KEYS // BLOCK_TOKENS
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    blank = gl.zeros([KEYS, HEADS], gl.float32, S_LAYOUT)
    key_row = gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT))
    query_row = gl.arange(0, HEADS, gl.SliceLayout(1, L))
    query_head = gl.arange(0, HEADS, gl.SliceLayout(0, S_LAYOUT))
    mine = (query_head < GROUP)[None, :]
    if EARLY:
        gdc_wait()
    at, done = begin, 0
    while at + extra < end:
        length = gl.load(kv_len + sequence)
        place = gl.load(slot_mapping + sequence)
        wide = sequence.to(gl.int64)
        first, tiles = tiles_in(length, window, KEYS, ALIGNED)
        oldest = first_seen(length - 1, window, ALIGNED)
        head, start, skipped, count = part_at(at, end, base, tiles, extra)
        turn = cos_sin + gl.maximum(length - 1, 0).to(gl.int64) * angle_stride
        x = q + wide * strides[0] + (head * GROUP + query_row) * strides[1]
        put_queries(x, turn, query_blocks, GROUP, HEADS, D)
        fence_async_shared()
        barrier()
        acc = gl.zeros([D, HEADS], gl.float32, S_LAYOUT)
        peak = gl.full([HEADS], LOWEST, gl.float32, gl.SliceLayout(0, S_LAYOUT))
        weight_sums = gl.zeros([KEYS, HEADS], gl.float32, S_LAYOUT)
        for i in range(count):
            stage = done % STAGES
            behind = (first + skipped + i) * KEYS
            mbarrier.wait(full.index(stage), done // STAGES & 1)
            if (skipped + i == tiles - 1) & (length > 0):
                offset = length - 1 - behind
                block = (place // BLOCK_TOKENS).to(gl.int64) * 2 * kv_heads + head
                _put_newest(
                    k + wide * strides[2] + head * strides[3],
                    v + wide * strides[4] + head * strides[5],
                    turn, cache + (block * BLOCK_TOKENS + place % BLOCK_TOKENS) * D,
                    kv_heads * BLOCK_TOKENS * D, place >= 0, (key_blocks, value_blocks),
                    stage * (D // ATOM) * PAGES + offset // BLOCK_TOKENS, offset % BLOCK_TOKENS,
                    D, PAGES, STORED,
                )  # fmt: skip
            scores = warpgroup_mma(key_tiles.index(stage), queries, blank, use_acc=False) * scale
            key = behind + key_row
            seen = (key < length) & (key >= oldest)
            scores = gl.where(seen[:, None] & mine, scores, float("-inf"))
            new_peak = gl.maximum(peak, gl.max(scores, 0))
            weight = gl.exp2(scores - new_peak[None, :])
            shrink = gl.exp2(peak - new_peak)[None, :]
            peak = new_peak
            weight_sums = weight_sums * shrink + weight
            weights.store(weight.to(weights.dtype))
            fence_async_shared()
            barrier()
            values = value_tiles.index(stage).permute((1, 0))
            acc = warpgroup_mma(values, weights, acc * shrink)
            mbarrier.arrive(empty.index(stage), count=1)
            done += 1
        owners = (
            owner_of(start + extra, total, programs),
            owner_of(start + extra + tiles - 1, total, programs),
        )
        put_pair(
            (acc, peak, gl.sum(weight_sums, 0)), outs, (wide * kv_heads + head, head), owners,
            (start, total, programs, gl.where(at > begin, 1, 0)), GROUP, D, SINKS,
        )  # fmt: skip
        at = start + tiles + extra
        ended = head == kv_heads - 1
        sequence = gl.where(ended, sequence + 1, sequence)
        base = gl.where(ended, at, base)


@gluon.jit(do_not_specialize=["sequences"])
def _attend(
    desc, qkv, angles, slot_mapping, cache, tables, kv_len, outs, scale, window, strides, kv_heads,
    sequences, nowhere,
    GROUP: gl.constexpr, HEADS: gl.constexpr, BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr,
    D: gl.constexpr, STAGES: gl.constexpr, SEQUENCES: gl.constexpr, LEAST: gl.constexpr,
    ALIGNED: gl.constexpr, SINKS: gl.constexpr, STORED: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    kind: gl.constexpr = cache.dtype.element_ty
    share = share_of(kv_len, kv_heads, sequences, window, KEYS, SEQUENCES, LEAST, ALIGNED, SUMMED)
    BLOCKS: gl.constexpr = STAGES * (D // ATOM) * (KEYS // BLOCK_TOKENS)
    T_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, D], kind)
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, D], kind)
    W_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, KEYS], kind)
    H_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, ATOM], kind)
    queries = gl.allocate_shared_memory(kind, [HEADS, D], Q_LAYOUT)
    query_blocks = as_blocks(queries, D // ATOM, HEADS, ATOM, H_LAYOUT)
    weights = gl.allocate_shared_memory(kind, [HEADS, KEYS], W_LAYOUT)
    operands = (query_blocks, queries.permute((1, 0)), weights.permute((1, 0)))
    keys = gl.allocate_shared_memory(kind, [STAGES, KEYS, D], T_LAYOUT)
    values = gl.allocate_shared_memory(kind, [STAGES, KEYS, D], T_LAYOUT)
    B_LAYOUT: gl.constexpr = desc.layout
    key_blocks = as_blocks(keys, BLOCKS, BLOCK_TOKENS, ATOM, B_LAYOUT)
    value_blocks = as_blocks(values, BLOCKS, BLOCK_TOKENS, ATOM, B_LAYOUT)
    bars = make_bars(STAGES, 1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_sum, (
                qkv, angles, slot_mapping, cache, kv_len, outs,
                (keys, values, key_blocks, value_blocks), bars, operands, share, kv_heads, window,
                scale, strides, GROUP, HEADS, BLOCK_TOKENS, KEYS, D, STAGES, ALIGNED, SINKS,
                STORED, EARLY,
            )),
            (copy_share, (
                (desc,), tables, kv_len, outs[0], ((key_blocks, value_blocks),), bars, share,
                kv_heads, sequences, window, nowhere, GROUP, BLOCK_TOKENS, KEYS, D, D // ATOM,
                2 * KEYS * D * 2, STAGES, ALIGNED, EARLY,
            )),
        ],
        [1],
        [40],
    )  # fmt: skip


class Tiles(NamedTuple):
    """Keys of a tile, tiles of a program's ring, tiles of a share at least, programs resident."""

    keys: int
    stages: int
    least: int
    resident: int


# Launch constants for heads of each size.
#
# On an H200, 32 query and 8 key heads of 128, with heads for rows, 256 sequences of 1,100 tokens:
# 4.07 TB/s, one of 384 8.4 us; with shares of 4 tiles 4.05 and 11.6; with one program of 6 tiles
# 3.64; with one of 3 tiles of 128 3.74; with tiles of 32 4.00.
#
# Shares of one tile where no pair has more parts than are read together (SUMMED): on an H100, one
# sequence of 256 tokens gains 3.7 us with 8 key heads, 4.0 with 4; one of 600 would lose 2.2.
TILES = {64: Tiles(128, 3, 1, 2), 128: Tiles(64, 3, 2, 2), 256: Tiles(64, 3, 1, 1)}


def launch(tensors: tuple[Tensor, ...], memory: Memory, rule: Rule, stored: bool) -> bool:
    """Whether this kernel takes such tensors; if so, it is launched.

    `tensors` = (q, k, v, cos_sin, slot_mapping, out), `memory` = (kv_cache, block_tables, slots,
    kv_len, kv_params), `rule` as in `Rule`; `stored`: the cache has k and v.
    """
    q, k, v, cos_sin, slot_mapping, out = tensors
    scale, window, aligned, sinks = rule
    kv_cache, block_tables, slots, kv_len, _ = memory
    if not fits(q, kv_cache, tuple(TILES)) or q.shape[1] > GREATEST * kv_cache.shape[2]:
        return False
    sequences, heads, size = q.shape
    _, _, kv_heads, block_tokens, _ = kv_cache.shape
    tiles, group = TILES[size], heads // kv_heads
    early = early_launch(q.device)
    programs = processors(q.device) * tiles.resident
    # At most two pairs of a program are shared with others.
    parts = torch.empty((programs * 2 * group, size), dtype=torch.float32, device=q.device)
    peaks = torch.empty((programs * 2 * group, 2), dtype=torch.float32, device=q.device)
    _attend[(programs,)](
        blocks_of(kv_cache),
        (q, k, v),
        (cos_sin, cos_sin.stride(0)),
        slot_mapping,
        kv_cache,
        (block_tables, slots, block_tables.stride(0)),
        kv_len,
        (out, parts, peaks, arrivals(q.device, PAIRS), kv_len if sinks is None else sinks),
        scale * LOG2_E,
        window or block_tables.shape[1] * block_tokens,
        (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2]),
        kv_heads,
        sequences,
        kv_cache.numel() // size,
        GROUP=group,
        HEADS=8 if group <= 8 else 16,
        BLOCK_TOKENS=block_tokens,
        KEYS=tiles.keys,
        D=size,
        STAGES=tiles.stages,
        # Of 32 a warp adds up the tiles by itself.
        SEQUENCES=32 if sequences <= 32 else max(128, power_of_two(sequences)),
        LEAST=tiles.least,
        ALIGNED=aligned and window > 0,
        SINKS=sinks is not None,
        STORED=stored,
        EARLY=early,
        num_warps=4,
        maxnreg=128,
        launch_pdl=early,
    )
    return True
