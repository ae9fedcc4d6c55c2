"""What kernels for Hopper share: rings of tiles, blocks of the cache through the copy engine."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from functools import cache

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROWS = gl.constexpr(64)  # of a warp group: the height of its matrix products
ATOM = gl.constexpr(64)  # columns of one copy: 128 bytes, the widest swizzle
# What later versions of Triton than 3.6 call otherwise.
REINTERPRETS = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
# scale, window (0: none), whether windows are aligned, sinks
Rule = tuple[float, int, bool, Tensor | None]
KINDS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}
COPIED_KINDS = {**KINDS, torch.float8_e4m3fn: gl.float8e4nv}


@gluon.jit
def add(a, b):
    """For scans."""
    return a + b


@gluon.constexpr_function
def _turned(width, swaps):
    """Layout of a wgmma's sum [ROWS, width] in which a thread holds 2 columns in a row, or 4 or 8
    after `swaps` swaps of a bit of the column between lanes and registers."""
    lanes, registers = [[0, 2], [0, 4]], [[0, 8], [0, 16]]
    for at in range(swaps):
        lanes[at], registers[at] = registers[at], lanes[at]
    others = [[0, 1], *([0, 1 << bit] for bit in range(5, width.bit_length() - 1)), [8, 0]]
    registers = sorted(registers + others)  # columns first
    lanes += [[1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, width])


@gluon.jit
def in_rows(values, WIDTH: gl.constexpr):
    """A wgmma's sum, rounded to 16 bits, with 8 columns in a row in a thread; 16 stay as they are.

    Then a store writes whole sectors. A swap of one bit is a shuffle. Two in one conversion the
    compiler would do through shared memory, which costs power and is taken by the ring.
    """
    if WIDTH >= 32:
        for swaps in gl.static_range(3):
            values = gl.convert_layout(values, _turned(WIDTH, swaps))
    return values


@gluon.jit
def banded(number, row_tiles, output_tiles, BAND: gl.constexpr):
    """(tile of rows, tile of outputs) of tile `number`: band by band of BAND tiles of rows, and
    within one outputs by outputs. So few rows of both matrices are in use at a time."""
    band = number // (BAND * output_tiles)
    within = number % (BAND * output_tiles)
    height = gl.minimum(row_tiles - band * BAND, BAND)
    return band * BAND + within % height, within // height


@gluon.jit
def as_blocks(
    memory, COUNT: gl.constexpr, HEIGHT: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr
):
    """The same shared memory as COUNT blocks [HEIGHT, WIDTH], each of a layout."""
    if REINTERPRETS:
        return memory.reinterpret(memory.dtype, [COUNT, HEIGHT, WIDTH], LAYOUT)
    else:  # noqa: RET505
        return memory._reinterpret(memory.dtype, [COUNT, HEIGHT, WIDTH], LAYOUT)


@gluon.jit
def copy_tile(
    desc, table, plane, span, bar, blocks, at,
    HEIGHT: gl.constexpr, PAGES: gl.constexpr, HALVES: gl.constexpr,
):  # fmt: skip
    """As `copy_pages`, for blocks span[0] .. of a table, which is read block by block.

    In prefill over a plain cache that was faster: see bench/results/quantization.md.
    """
    planes, number, nowhere = plane
    first, begin, end = span
    for page in gl.static_range(PAGES):
        own = (first + page >= begin) & (first + page < end)
        block = gl.load(table + first + page, mask=own, other=0)
        row = gl.where(own, (block * planes + number) * HEIGHT, nowhere)
        for half in gl.static_range(HALVES):
            target = blocks.index((at * HALVES + half) * PAGES + page)
            copy(desc, [row, half * ATOM], bar, target)


@gluon.jit
def pages_at(table, span, PAGES: gl.constexpr):
    """Blocks span[0] .. span[0] + PAGES - 1 of a table, read together: a tuple.

    Blocks before `span[1]` and from `span[2]` on are not the sequence's: -1.
    """
    first, begin, end = span
    pages = ()
    for page in gl.static_range(PAGES):
        own = (first + page >= begin) & (first + page < end)
        pages = pages + (gl.load(table + first + page, mask=own, other=-1),)  # noqa: RUF005
    return pages


@gluon.jit
def copy_pages(
    desc, pages, plane, bar, blocks, at,
    HEIGHT: gl.constexpr, PAGES: gl.constexpr, HALVES: gl.constexpr,
):  # fmt: skip
    """Starts the copies of one plane of the blocks `pages`, of `pages_at`, to tile `at`.

    `plane` = (planes of a block, plane, a row past the cache's end): blocks that are not the
    sequence's become zeros, since a weight of 0 would not silence what others may have there. A
    plane has HEIGHT rows in `desc`, and HALVES times ATOM columns. `blocks` is the ring of tiles as
    blocks of HEIGHT rows; copies begin at multiples of 128 bytes, so they may fill a part of one.
    """
    planes, number, nowhere = plane
    for page in gl.static_range(PAGES):
        row = gl.where(pages[page] >= 0, (pages[page] * planes + number) * HEIGHT, nowhere)
        for half in gl.static_range(HALVES):
            target = blocks.index((at * HALVES + half) * PAGES + page)
            if target.shape[1] > desc.block_shape[1]:
                target = target.slice(0, desc.block_shape[1], 1)
            copy(desc, [row, half * ATOM], bar, target)


@gluon.jit
def make_bars(STAGES: gl.constexpr, READERS: gl.constexpr):
    """(full, empty) barriers of a ring that READERS warp groups read."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=READERS)
    return full, empty


def blocks_of(kv_cache: Tensor) -> TensorDescriptor:
    """The copy engine's view of a cache: rows of a head, one plane of a block at a time."""
    block_tokens, size = kv_cache.shape[3:]
    return view_of(kv_cache.view(-1, size), block_tokens)


def view_of(matrix: Tensor, rows: int) -> TensorDescriptor:
    """The copy engine's view of a matrix, in blocks of `rows` rows and of 128 bytes of each."""
    block = rows, 2 * ATOM.value // matrix.itemsize
    return in_blocks(matrix, block, COPIED_KINDS[matrix.dtype])


def in_blocks(matrix: Tensor, block: tuple[int, int], kind: gl.dtype) -> TensorDescriptor:
    """The copy engine's view of a matrix, in blocks of this shape, swizzled as elements of `kind`
    are."""
    shape, strides = list(matrix.shape), list(matrix.stride())
    return TensorDescriptor(matrix, shape, strides, list(block), _layout(block, kind))


@cache
def _layout(block: tuple[int, int], kind: gl.dtype) -> gl.NVMMASharedLayout:
    """(To make one takes as long as half a launch.)"""
    return gl.NVMMASharedLayout.get_default_for(list(block), kind)


def copied(matrix: Tensor) -> bool:
    """Whether the copy engine takes a matrix of 16 bits."""
    strided = matrix.stride(1) == 1 and matrix.stride(0) % 8 == 0
    return strided and matrix.data_ptr() % 16 == 0


def fits(q: Tensor, kv_cache: Tensor, sizes: tuple[int, ...] = (64, 128)) -> bool:
    """Whether an attention kernel for Hopper, made for heads of these sizes, takes such tensors."""
    shapes = kv_cache.shape[3] in (8, 16, 32, 64) and q.shape[2] in sizes
    stored = kv_cache.dtype == q.dtype or kv_cache.dtype.itemsize == 1
    return shapes and stored and q.dtype in KINDS
