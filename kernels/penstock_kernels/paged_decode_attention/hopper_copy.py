"""The copying warp of the decode attention kernels for Hopper GPUs."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_wait

from ..hopper import copy_pages, pages_at
from ..online_softmax import first_seen
from .shares import part_at, tiles_in


@gluon.jit
def copy_share(
    descs, tables, kv_len, out, rings, bars, share, kv_heads, sequences, window, nowhere,
    GROUP: gl.constexpr, BLOCK_TOKENS: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr,
    HALVES: gl.constexpr, BYTES: gl.constexpr, STAGES: gl.constexpr, ALIGNED: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    """The copying warp: all tiles of this program's share, one after another; zeros for padding.

    `descs` = (cache,), or (cache, parameters) of a quantized one; `rings`: for each of them, that
    of keys and that of values. A tile has BYTES in all.
    """
    block_tables, slots, table_stride = tables
    full, empty = bars
    PAGES: gl.constexpr = KEYS // BLOCK_TOKENS
    at, end, sequence, base, _, _, extra, live = share
    done = 0
    while at + extra < end:
        length = gl.load(kv_len + sequence)
        table = block_tables + gl.load(slots + sequence).to(gl.int64) * table_stride
        # Blocks behind the window.
        passed = first_seen(length - 1, window, ALIGNED) // BLOCK_TOKENS
        blocks = gl.cdiv(length, BLOCK_TOKENS)
        first, tiles = tiles_in(length, window, KEYS, ALIGNED)
        head, start, skipped, count = part_at(at, end, base, tiles, extra)
        for i in range(count):
            stage = done % STAGES
            span = ((first + skipped + i) * PAGES, passed, blocks)
            pages = pages_at(table, span, PAGES)
            mbarrier.wait(empty.index(stage), (done // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, BYTES)
            for kind in gl.static_range(2):
                plane = (2 * kv_heads, kind * kv_heads + head, nowhere)
                copy_pages(
                    descs[0], pages, plane, bar, rings[0][kind], stage, BLOCK_TOKENS, PAGES, HALVES
                )
                if len(descs) == 2:
                    copy_pages(descs[1], pages, plane, bar, rings[1][kind], stage, 1, PAGES, 1)
            done += 1
        at = start + tiles + extra
        ended = head == kv_heads - 1
        sequence = gl.where(ended, sequence + 1, sequence)
        base = gl.where(ended, at, base)
    if EARLY:
        gdc_wait()  # the kernel before may still read `out`
    L: gl.constexpr = gl.BlockedLayout([8], [32], [1], [0])
    width = kv_heads * GROUP * D
    for row in range(live + gl.program_id(0), sequences, gl.num_programs(0)):
        for first in range(0, width, 256):
            column = first + gl.arange(0, 256, L)
            targets = out + row * width + column
            gl.store(targets, gl.zeros([256], out.dtype.element_ty, L), mask=column < width)
