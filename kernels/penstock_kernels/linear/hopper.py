"""Kernel of gated linear for many rows on Hopper GPUs, in Gluon: TMA, wgmma, warp specialization.

A program takes tiles of rows and of gate outputs with the up outputs that belong to them, one after
another. One warp copies x and both weights into a ring and goes on with the next tile; warp groups
take ROWS of the rows each. Gate and up of an output are in one thread, so that they meet before
anything is rounded or written: neither goes through memory.

What that saves is power, which limits a GPU that multiplies for seconds: in turns on an H200, an 8B
layer's products of 8,192 rows take 5,356 us, and with cuBLAS and act_mul in place of this kernel
5,562. Where rows are fewer, tiles that all programs can take at once save time: see `tiling`.

Source: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..device import processors
from ..hopper import ATOM, KINDS, ROWS, banded, copied, copy, in_rows, make_bars, view_of
from ..online_softmax import LOG2_E
from .plan import MOST_PARTS, Tiling

MINUS_LOG2_E = gl.constexpr(-LOG2_E)
DEPTH = gl.constexpr(ATOM.value)  # inputs of one turn
STAGES = gl.constexpr(4)  # turns in the ring
BAND = gl.constexpr(16)  # tiles of rows that are taken for each tile of outputs, for the L2 cache


@gluon.constexpr_function
def _before(parts, count):
    """Outputs of the first `count` parts of a tile."""
    return sum(list(parts)[:count])


@gluon.jit
def _copy(x_desc, weight_descs, rings, bars, sizes, GROUPS: gl.constexpr, PARTS: gl.constexpr):
    """The copy warp: loads all pieces of all tiles of this program."""
    x_ring, weight_rings = rings
    full, empty = bars
    row_tiles, output_tiles, outputs, inputs = sizes
    OUTPUTS: gl.constexpr = _before(PARTS, len(PARTS))
    TURN_BYTES: gl.constexpr = (GROUPS * ROWS + 2 * OUTPUTS) * DEPTH * 2
    done = 0
    for number in range(gl.program_id(0), row_tiles * output_tiles, gl.num_programs(0)):
        row, output = banded(number, row_tiles, output_tiles, BAND)
        for at in range(0, inputs, DEPTH):
            stage = done % STAGES
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), (done // STAGES & 1) ^ 1)
            mbarrier.expect(bar, TURN_BYTES)
            for group in gl.static_range(GROUPS):
                target = x_ring.index(stage * GROUPS + group)
                copy(x_desc, [(row * GROUPS + group) * ROWS, at], bar, target)
            for part in gl.static_range(len(PARTS)):
                first = output * OUTPUTS + _before(PARTS, part)
                sides = weight_rings[part].index(stage)
                for side in gl.static_range(2):
                    target = sides.slice(side * PARTS[part], PARTS[part])
                    copy(weight_descs[part], [side * outputs + first, at], bar, target)
            done += 1


@gluon.jit
def _no_sums(PARTS: gl.constexpr):
    """For each part, of gate and up, side by side."""
    sums = ()
    for part in gl.static_range(len(PARTS)):
        sums = sums + (_no_sum(2 * PARTS[part]),)  # noqa: RUF005 (Triton unpacks no tuples)
    return sums


@gluon.jit
def _no_sum(WIDTH: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    return gl.zeros([ROWS, WIDTH], gl.float32, layout)


@gluon.jit
def _wait(sums, COUNT: gl.constexpr):
    """Waits until all products except the last COUNT are in the sums."""
    if len(sums) == 1:
        return (warpgroup_mma_wait(COUNT, [sums[0]]),)
    else:  # noqa: RET505
        return warpgroup_mma_wait(COUNT, sums)


@gluon.jit
def _multiply(
    out, rings, bars, rows, sizes, GROUPS: gl.constexpr, PARTS: gl.constexpr, GROUP: gl.constexpr
):
    """A warp group: multiplies its ROWS of every tile."""
    x_ring, weight_rings = rings
    full, empty = bars
    row_tiles, output_tiles, outputs, inputs = sizes
    OUTPUTS: gl.constexpr = _before(PARTS, len(PARTS))
    done = 0
    for number in range(gl.program_id(0), row_tiles * output_tiles, gl.num_programs(0)):
        row_tile, output = banded(number, row_tiles, output_tiles, BAND)
        sums = _no_sums(PARTS)
        for at in range(0, inputs, DEPTH):
            stage = done % STAGES
            mbarrier.wait(full.index(stage), done // STAGES & 1)
            x = x_ring.index(stage * GROUPS + GROUP)
            more = ()
            for part in gl.static_range(len(PARTS)):
                weights = weight_rings[part].index(stage).permute((1, 0))
                product = warpgroup_mma(x, weights, sums[part], is_async=True)
                more = more + (product,)  # noqa: RUF005
            sums = _wait(more, len(PARTS))
            if at > 0:  # the turn before is through
                mbarrier.arrive(empty.index((done - 1) % STAGES), count=1)
            done += 1
        sums = _wait(sums, 0)
        mbarrier.arrive(empty.index((done - 1) % STAGES), count=1)
        row = (row_tile * GROUPS + GROUP) * ROWS
        for part in gl.static_range(len(PARTS)):
            column = output * OUTPUTS + _before(PARTS, part)
            _gate(sums[part], out, (rows, outputs), (row, column), PARTS[part])


@gluon.jit
def _gate(both, out, sizes, place, WIDTH: gl.constexpr):
    """Writes silu(gate) * up of WIDTH outputs; `both` are [ROWS, 2 * WIDTH]."""
    rows, outputs = sizes
    gate, up = both.reshape([ROWS, 2, WIDTH]).permute((0, 2, 1)).split()
    result = gate / (1 + gl.exp2(gate * MINUS_LOG2_E)) * up
    result = in_rows(result.to(out.dtype.element_ty), WIDTH)
    layout: gl.constexpr = result.type.layout
    row = place[0] + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = place[1] + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
    targets = out + row.to(gl.int64)[:, None] * outputs + column[None, :]
    gl.store(targets, result, mask=(row < rows)[:, None])


@gluon.jit
def _ring(WIDTH: gl.constexpr, kind: gl.constexpr):
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * WIDTH, DEPTH], kind)
    return gl.allocate_shared_memory(kind, [STAGES, 2 * WIDTH, DEPTH], layout)


@gluon.jit(do_not_specialize=["rows"])
def _gated(
    x_desc, first, second, third, out, rows, outputs, inputs,
    GROUPS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    kind: gl.constexpr = out.dtype.element_ty
    x_ring = gl.allocate_shared_memory(kind, [STAGES * GROUPS, ROWS, DEPTH], x_desc.layout)
    weight_rings = ()
    for part in gl.static_range(len(PARTS)):
        weight_rings = weight_rings + (_ring(PARTS[part], kind),)  # noqa: RUF005
    rings = x_ring, weight_rings
    bars = make_bars(STAGES, GROUPS)
    fence_async_shared()
    OUTPUTS: gl.constexpr = _before(PARTS, len(PARTS))
    sizes = gl.cdiv(rows, GROUPS * ROWS), outputs // OUTPUTS, outputs, inputs
    weights = first, second, third
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (out, rings, bars, rows, sizes, GROUPS, PARTS, 0)),
                (_multiply, (out, rings, bars, rows, sizes, GROUPS, PARTS, 1)),
                (_copy, (x_desc, weights, rings, bars, sizes, GROUPS, PARTS)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.static_assert(GROUPS == 3)
        gl.warp_specialize(
            [
                (_multiply, (out, rings, bars, rows, sizes, GROUPS, PARTS, 0)),
                (_multiply, (out, rings, bars, rows, sizes, GROUPS, PARTS, 1)),
                (_multiply, (out, rings, bars, rows, sizes, GROUPS, PARTS, 2)),
                (_copy, (x_desc, weights, rings, bars, sizes, GROUPS, PARTS)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


def launch(tiles: Tiling, x: Tensor, weight: Tensor, out: Tensor) -> bool:
    """Launches out = silu(x G^T) * (x U^T) if the kernel supports the tensors; returns whether it
    did.

    The tiles must divide the outputs.
    """
    fits = x.shape[1] % DEPTH.value == 0 and x.dtype in KINDS
    if not fits or not copied(x) or not copied(weight):
        return False
    weights = [view_of(weight, width) for width in tiles.parts]
    _gated[(processors(x.device),)](
        view_of(x, ROWS.value),
        *(weights + weights[:1] * (MOST_PARTS - len(weights))),
        out,
        x.shape[0],
        out.shape[1],
        x.shape[1],
        GROUPS=tiles.groups,
        PARTS=tiles.parts,
        num_warps=4,
        maxnreg=168 if tiles.groups == 2 else 128,
    )
    return True
