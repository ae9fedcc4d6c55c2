"""Plans: which kernel computes a product, and with which tiles; measured, or by a rule.

A plan depends on the GPU, the weights' shape and the bucket of the number of rows, never on the
number of rows itself. So a row's result does not depend on the number of other rows in its bucket,
except with the plan `Library`: cuBLAS and `tiling` depend on the exact number of rows.

On Hopper GPUs, `tiling` says with which tiles a gated product of many rows is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device import divided_up, power_of_two

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEW = 64  # rows whose products are bound by reading the weights
# Tiles that split their inputs and programs of one launch that count their arrival.
COUNTERS = 1 << 14
LEAST_ROWS = 16  # smallest second side of a matrix instruction
GROUP_ROWS = 64  # the height of a warp group's matrix instruction, `hopper.ROWS`
MOST_PARTS = 3


@dataclass(frozen=True)
class Gemv:
    """One row. A program multiplies whole rows of the weights in registers."""

    tile: int
    """Weight rows of a program, or of a turn of its loop."""
    warps: int
    """Warps of a program."""
    programs: int
    """Programs per multiprocessor that share the tiles; 0 is a program for every tile."""


@dataclass(frozen=True)
class Skinny:
    """Up to 256 rows, on the matrix units, all of them in every program."""

    tile: int
    """Weight rows of a program."""
    depth: int
    """Inputs of a turn of its loop."""
    splits: int
    """Programs that share one tile's inputs."""
    warps: int
    """Warps of a program."""
    stages: int
    """Turns whose loads are in flight."""

    def shared_bytes(self, gated: bool, rows: int) -> int:
        """Returns the shared memory of a program with 16-bit operands, for a bucket of rows."""
        columns = self.tile * (1 + gated) + max(rows, LEAST_ROWS)
        return columns * self.depth * 2 * (self.stages - 1)


@dataclass(frozen=True)
class Library:
    """cuBLAS; or `hopper`, for gated products on Hopper GPUs for which `tiling` has tiles."""


Plan = Gemv | Skinny | Library
KINDS: dict[str, type[Plan]] = {"gemv": Gemv, "skinny": Skinny, "library": Library}


@dataclass(frozen=True)
class Problem:
    """The shape and kind of a product, by which its plan is chosen."""

    outputs: int
    """Rows of the weights; of one half of them if gated."""
    inputs: int
    """Columns of the weights."""
    gated: bool
    """Whether the weights are [gate; up]."""


def bucket(rows: int) -> int | None:
    """The smallest bucket that holds `rows`; None if none does."""
    return next((b for b in BUCKETS if rows <= b), None)


def rule(problem: Problem, rows: int, programs: int, shared: int) -> Plan:
    """Returns a plan for an unmeasured shape: the best one over the measured shapes of an H200.

    One row fills the registers with one to four rows of weights, unless these leave more than a
    third of them empty. A few rows take tiles of 64, split until there are `programs` programs,
    which gated weights cannot be, and half as deep where a program has no more than `shared` bytes
    of shared memory. More are left to cuBLAS.
    """
    outputs, inputs = problem.outputs, problem.inputs
    depth = power_of_two(inputs)  # registers of a row; a tile has a power of 2 of them
    fills = 3 * inputs >= 2 * depth or inputs % 64 > 0
    if rows == 1 and inputs <= 16384 and fills:
        return Gemv(tile=max(1, min(4, 8192 // depth)), warps=8 if inputs > 2048 else 4, programs=0)
    if inputs % 64 or rows > FEW:
        return Library()
    tiles = divided_up(outputs, 64)
    splits = 1
    while (
        not problem.gated
        and splits < 8
        and tiles * splits < programs
        and inputs % (splits * 256) == 0
    ):
        splits *= 2
    for depth in (128, 64) if rows <= 32 else (64,):
        plan = Skinny(tile=64, depth=depth, splits=splits, warps=4, stages=4)
        if plan.shared_bytes(problem.gated, rows) <= shared:
            return plan
    return Library()


@dataclass(frozen=True)
class Tiling:
    """What a program computes at a time."""

    groups: int
    """Warp groups that multiply, of GROUP_ROWS rows each: 2 or 3."""
    parts: tuple[int, ...]
    """Outputs, as matrix instructions take them: MOST_PARTS powers of two at most, a gate and an up
    each."""

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.groups * GROUP_ROWS

    @property
    def outputs(self) -> int:
        """Outputs of a tile."""
        return sum(self.parts)

    def tiles(self, rows: int, outputs: int) -> int:
        """Tiles of a product."""
        return divided_up(rows, self.rows) * (outputs // self.outputs)


LARGE = Tiling(groups=2, parts=(128,))
TALL = Tiling(groups=3, parts=(64, 64))
NARROW = Tiling(groups=2, parts=(64, 32, 16))
TILINGS = (LARGE, TALL, NARROW)
# From this many rows on, power limits a gated product; large tiles take the least.
MANY_ROWS = 1024
# Below, what counts is that few programs wait in the last wave, in which each takes its last tile:
# (most rows, tiles). Measured plans of `table` come first, where there are any. Of more
# than 384 rows cuBLAS fills its waves as well.
FEW_ROWS = ((128, NARROW), (192, TALL), (384, NARROW))
LEAST_FILLED = 0.8  # of all waves


def tiling(rows: int, outputs: int, programs: int) -> Tiling | None:
    """The tiles of a product that `programs` programs at a time compute; None if cuBLAS is to.

    Measured on an H200 with 14,336 outputs of 4,096 inputs (bench/results/kernels.md). For 129 to
    384 rows these tiles take less time in bursts and no more over seconds; for more rows, as much
    or less over seconds.
    """
    if rows >= MANY_ROWS:
        return LARGE if outputs % LARGE.outputs == 0 else None
    one = next((one for most, one in FEW_ROWS if rows <= most), None)
    if one is None or outputs % one.outputs:
        return None
    tiles = one.tiles(rows, outputs)
    waves = divided_up(tiles, programs)
    return one if tiles >= LEAST_FILLED * waves * programs else None
