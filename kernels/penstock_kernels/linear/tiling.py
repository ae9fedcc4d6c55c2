"""Tiles of the gated product of many rows on Hopper GPUs, and which of them suit how many rows."""

from __future__ import annotations

from dataclasses import dataclass

from ..device import divided_up

GROUP_ROWS = 64  # the height of a warp group's matrix instruction, `hopper.ROWS`
MOST_PARTS = 3


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
