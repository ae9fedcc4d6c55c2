"""Which kernels compute a layer's experts, and in what pieces.

A *choice* is a pair of a token and one of its experts. A plan depends on the GPU, the layer's shape
and the bucket of the number of tokens, never on the exact number, nor on which experts are chosen:
one CUDA graph serves every routing. So a token's result does not depend on the other tokens of its
bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device import divided_up, power_of_two

VECTOR_TOKENS = 2  # up to which programs multiply vectors, and no choices are sorted
VECTOR_NUMBERS = 1 << 12  # weights of a turn of such a program's loop
VECTOR_TILE = 4  # outputs of such a program; of the first product, of each half
# Tokens up to which the summands of a token's sum stay float32. Of more tokens, their bytes count:
# with 4,096 tokens of Qwen3 30B-A3B, 268 MB are written and read again.
EXACT_TOKENS = 256
BLOCK = 64  # outputs and inputs of a block of packed words
# Rows of a tile, and the mean of an expert's rows up to which it is best. Experts' rows differ:
# a tile should hold most of them, as each further tile reads the expert's weights again.
TILE_ROWS = ((16, 8), (32, 20), (64, 48))
MOST_ROWS = 128
# The same where `hopper_many` or `hopper_float8` multiplies more rows. Their tiles may be high, as
# they cost little where they are empty.
FEW_TILE_ROWS = TILE_ROWS[:2]
HOPPER_ROWS = 256  # of `hopper_many` and `hopper_many_codes`; of `hopper_float8` MOST_ROWS
STAGES_OF_CODES = 3  # turns in the ring of `hopper_many_codes`
FEWEST_ROWS = 16  # smallest side of a matrix instruction
# Choices that a program sorts. Its work grows with their square, the number of counts that every
# program reads with the number of programs.
CHUNK, LARGE_CHUNK = 128, 256
LARGE_CHUNK_CHOICES = 1 << 14
FEW_CHOICES = 1 << 12  # up to which every program reads all of them,
COPIED_CHOICES = 1 << 10  # and up to which it also copies the rows of its expert
READ_COUNTS = 1 << 12  # counts that a program reads at once


@dataclass(frozen=True)
class Problem:
    """What a plan is chosen for."""

    tokens: int
    top_k: int
    experts: int
    """Of all ranks: how many rows each has on average does not depend on how they are shared."""
    hidden: int
    inner: int
    bits: int
    """Of a number of x."""
    packed: bool
    """Whether weights are codes."""
    sides: int = 2
    """Of the first product: gates and ups, or ups alone."""
    high: int = 0
    """Rows of a tile of the kernel whose tiles may be high; 0: none is for this layer."""

    @property
    def choices(self) -> int:
        """Pairs of a token and an expert."""
        return self.tokens * self.top_k


@dataclass(frozen=True)
class Product:
    """Tiles of one of the two products."""

    tile: int
    """Outputs of a program; gated, of each half."""
    depth: int
    """Inputs of a turn of its loop."""
    warps: int
    stages: int
    """Turns whose loads are in flight."""


@dataclass(frozen=True)
class Vectors:
    """Products of a matrix and a vector, one for each choice."""

    gate_up: Product
    down: Product
    """A program has the outputs of all experts of a token."""


@dataclass(frozen=True)
class Grouped:
    """Products of tiles of rows, sorted by expert."""

    rows: int
    """Rows of a tile, all of one expert."""
    gate_up: Product
    down: Product
    exact: bool
    """Whether the summands of a token's sum are float32; otherwise of x's dtype."""


Plan = Vectors | Grouped


def plan(problem: Problem, shared: int) -> Plan:
    """The plan for a GPU whose programs may have `shared` bytes of shared memory."""
    if problem.tokens <= VECTOR_TOKENS and not problem.packed:
        return _vectors(problem)
    rows = _tile_rows(problem)
    return Grouped(
        rows,
        _product(problem, rows, problem.hidden, problem.sides, shared),
        _product(problem, rows, problem.inner, 1, shared),
        problem.tokens <= EXACT_TOKENS and not (problem.packed and rows == HOPPER_ROWS),
    )


def _vectors(problem: Problem) -> Vectors:
    """Long pieces of few rows. On an H100, one token of Qwen3 30B-A3B takes 29.0 us with 4 rows of
    gates and ups, 29.7 with 8 and 36.8 with 16; of Mixtral 231, 234, 236."""
    top, each = power_of_two(problem.top_k), VECTOR_NUMBERS * 16 // problem.bits
    gate_up = Product(VECTOR_TILE, each // (problem.sides * VECTOR_TILE), 4, 4)
    return Vectors(gate_up, Product(VECTOR_TILE, max(16, each // (VECTOR_TILE * top)), 4, 4))


def most_tiles(choices: int, experts: int, rows: int) -> int:
    """Tiles of `rows` that hold any routing: as many experts as may be end with a part of one."""
    experts = min(choices, experts)
    return experts + (choices - experts) // rows


def _tile_rows(problem: Problem) -> int:
    mean = power_of_two(problem.tokens) * problem.top_k / problem.experts
    if problem.bits == 32:
        return FEWEST_ROWS if mean <= TILE_ROWS[0][1] else 2 * FEWEST_ROWS
    tile_rows = FEW_TILE_ROWS if problem.high else TILE_ROWS
    return next((rows for rows, most in tile_rows if mean <= most), problem.high or MOST_ROWS)


def _product(problem: Problem, rows: int, inputs: int, sides: int, shared: int) -> Product:
    """Tiles of a product with `sides` halves."""
    if problem.packed:
        return Product(BLOCK, BLOCK, 8 if rows > BLOCK else 4, 3)
    if problem.bits == 32:
        return Product(32, 32, 4, 3)
    tile, warps = {MOST_ROWS: (128, 8), HOPPER_ROWS: (64, 8)}.get(rows, (64, 4))
    depth = 128 if rows <= 32 and sides == 1 and inputs % 128 == 0 else 64
    turn = (sides * tile + rows) * depth * problem.bits // 8
    return Product(tile, depth, warps, max(2, min(4, shared // turn)))


def tiles_of(outputs: int, product: Product) -> int:
    """Programs that share the outputs of a tile of rows."""
    return divided_up(outputs, product.tile)
