"""Which kernel multiplies packed weights, and in what pieces.

As in `linear`, a plan depends on the GPU, the weights and the bucket of the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device import divided_up
from .weight import PackedWeight

TILE = 64  # outputs of a warp group
DEPTH = 128  # inputs of a turn of the Hopper kernel's loop
LEAST_ROWS, MOST_ROWS = 16, 256  # columns of the Hopper kernel's matrix instruction
FEW = 32  # rows up to which reading the weights takes longest, by far
RESIDENT_ROWS = 64  # up to which codes of 4 bits want two programs on each multiprocessor
LEAST_TURNS = 16  # of programs that share more than FEW rows
RING_BYTES = 224 << 10  # of a Hopper GPU's shared memory
COUNTERS = 1 << 14  # tiles that split their inputs and count their arrivals
GATED_ROWS = 64  # at most, where a thread has the sums of gate and of up; they fill its registers
# Rows from which a dequantized matrix and cuBLAS are faster. On a Hopper GPU its kernel has 0.8 to
# 0.95 of cuBLAS's speed; writing and reading the matrix takes 0.17 ms for 117 million weights. The
# kernel for many rows is never slower.
FLOAT8_ROWS = 64  # up to which reading float8 weights takes longest, so that x keeps 16 bits
DEQUANTIZE_ROWS = 64
DEQUANTIZE_ROWS_ON_HOPPER = 1536
STRIP = 16  # outputs of a program of the Hopper kernel for one row
# Inputs of a program of that kernel at most, without a norm and with one: it holds x in registers,
# once. With more inputs two programs share them: 8,192 outputs of 28,672 inputs of fp8 take 59.5 us
# on an H200, and 62.2 with the kernel of few rows.
MOST_INPUTS, MOST_NORMED, MOST_SPLITS = 1 << 14, 1 << 13, 2


@dataclass(frozen=True)
class Plan:
    """Pieces of one launch of the Hopper kernel."""

    rows: int
    """Rows of x of a program."""
    warp_groups: int
    """Warp groups of a program, of 64 outputs each, that share x."""
    splits: int
    """Programs that share the inputs of an output."""
    stages: int
    """Turns whose loads are in flight."""


@dataclass(frozen=True)
class Problem:
    """What a plan is chosen for."""

    rows: int
    outputs: int
    """Of one half if gated."""
    inputs: int
    gated: bool
    bits: int
    scale_bytes: int
    """Of scales and zeros of 64 outputs, in a turn."""


def plan(problem: Problem, processors: int) -> Plan:
    """A plan for the Hopper kernel.

    Measured on an H100 with the layers of an 8B model, and with 4 bits on an H200 with those of an
    8B and a 70B model: few rows want two programs on each multiprocessor, more rows one.
    """
    tiles, turns = divided_up(problem.outputs, TILE), divided_up(problem.inputs, DEPTH)
    columns = LEAST_ROWS
    while columns < min(problem.rows, MOST_ROWS):
        columns *= 2
    # Sums of the whole width that several programs share cost more than reading weights again: half
    # of the columns take 0.65 of the time. Rows past the end of x are slow to copy.
    least = processors // 2 if problem.rows >= MOST_ROWS else processors * 3 // 4
    if columns == MOST_ROWS and tiles * divided_up(problem.rows, columns) < least:
        columns //= 2
    blocks = divided_up(problem.rows, columns)
    warp_groups = _warp_groups(columns, tiles, blocks, processors)
    resident = RESIDENT_ROWS if problem.bits == 4 else FEW
    programs = processors * (2 if columns <= resident else 1)
    least_turns = 2 if columns <= FEW else LEAST_TURNS
    splits = 1
    while (
        not problem.gated
        and splits < 8
        and 2 * splits * blocks * tiles // warp_groups <= programs
        and turns >= 2 * splits * least_turns
    ):
        splits *= 2
    sides = 2 if problem.gated else 1
    words = problem.bits * TILE * DEPTH // 8
    bytes_of_turn = warp_groups * sides * (words + problem.scale_bytes) + columns * DEPTH * 2
    stages = max(2, min(4, RING_BYTES // bytes_of_turn))
    return Plan(columns, warp_groups, splits, stages)


def _warp_groups(columns: int, tiles: int, blocks: int, processors: int) -> int:
    """Warp groups of a program. One with two takes 1.92 times as long: what counts is how many
    programs a multiprocessor runs one after another."""
    if columns != 128 or tiles % 2:
        return 1
    together, alone = (divided_up(count * blocks, processors) for count in (tiles // 2, tiles))
    return 2 if 1.92 * together < alone else 1


def many(problem: Problem, processors: int) -> bool:
    """Whether the Hopper kernel for many rows computes this product, of codes of 4 bits.

    Measured on an H100 with the layers of an 8B model: a program of `plan` with MOST_ROWS rows
    takes 0.6 times as long as a tile, which has twice the outputs. What counts is how many of
    either a multiprocessor takes in turn.
    """
    tall = divided_up(problem.rows, MOST_ROWS)
    blocks = divided_up(problem.outputs, TILE) * (2 if problem.gated else 1)
    tiles = divided_up(divided_up(blocks, 2) * tall, processors)
    programs = divided_up(blocks * tall, processors)
    return problem.bits == 4 and problem.rows > MOST_ROWS // 2 and 5 * tiles <= 3 * programs


@dataclass(frozen=True)
class RowPlan:
    """Pieces of one launch of the Hopper kernel for one row."""

    warps: int
    """Warps of a program, which share the inputs."""
    turns: int
    """Turns of its loop; each warp takes DEPTH inputs in one."""
    stages: int
    """Turns whose words are in registers."""
    splits: int = 1
    """Programs that share the inputs of an output."""


def row_inputs(gated: bool, normed: bool) -> int:
    """Inputs at most of the Hopper kernel of one row."""
    return MOST_NORMED if normed else MOST_INPUTS if gated else MOST_INPUTS * MOST_SPLITS


def row_plan(problem: Problem, sums: int, processors: int) -> RowPlan:
    """A plan for the Hopper kernel of one row; `sums`: scales and zeros of an output in a turn.

    Measured with the layers of an 8B model, codes of 4 bits on an H100, of 8 bits on an H200: up to
    48 registers of a thread hold words, scales and zeros, or 96 with codes of 4 bits where all
    programs run at once. There codes of 8 bits want 8 warps. More inputs want more warps, which
    share x.
    """
    splits = divided_up(problem.inputs, MOST_INPUTS)
    at_once = divided_up(problem.outputs, STRIP) * splits <= 2 * processors
    warps = 8 if problem.inputs > 4096 or (problem.bits == 8 and at_once) else 4
    turns = divided_up(problem.inputs, splits * warps * DEPTH)
    registers = 96 if problem.bits == 4 and at_once and not problem.gated else 48
    most = registers // ((2 * problem.bits + 2 * sums) * (2 if problem.gated else 1))
    # Turns that only fill up the stages would read weights in vain.
    stages = next(size for size in (8, 4, 2, 1) if size <= max(most, 1) and turns % size == 0)
    return RowPlan(warps, turns, stages, splits)


def scales_of_turn(weight: PackedWeight) -> int:
    """Groups of the inputs of a turn; 0 if the Hopper kernels do not take them."""
    if weight.group % DEPTH == 0 or weight.group == weight.inputs:
        return 1
    counts = (2, 4, 8) if weight.kind.bits == 4 else (2,)
    count = DEPTH // weight.group
    return count if count in counts and weight.group * count == DEPTH else 0
