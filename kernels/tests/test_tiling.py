"""Which tiles a gated product of many rows takes."""

from __future__ import annotations

import pytest
from penstock_kernels.linear.plan import (
    LARGE,
    MOST_PARTS,
    NARROW,
    TALL,
    TILINGS,
    Tiling,
    tiling,
)

PROGRAMS = 132  # of an H200
OUTPUTS = 14336


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        *((rows, NARROW) for rows in (65, 128, 193, 384)),
        *((rows, TALL) for rows in (129, 192)),
        *((rows, None) for rows in (385, 1023)),
        *((rows, LARGE) for rows in (1024, 8190)),
    ],
)
def test_tiles_of_an_8b_model(rows: int, chosen: Tiling | None) -> None:
    assert tiling(rows, OUTPUTS, PROGRAMS) == chosen


@pytest.mark.parametrize(("rows", "chosen"), [(128, None), (192, None), (256, NARROW), (384, None)])
def test_tiles_that_leave_programs_idle_are_left_to_cublas(
    rows: int, chosen: Tiling | None
) -> None:
    assert tiling(rows, OUTPUTS // 2, PROGRAMS) == chosen


@pytest.mark.parametrize("rows", [100, 150, 256, 2048])
def test_outputs_must_be_whole_tiles(rows: int) -> None:
    assert tiling(rows, OUTPUTS + 8, PROGRAMS) is None


def test_parts_are_what_matrix_instructions_take() -> None:
    for one in TILINGS:
        assert all(part & (part - 1) == 0 and 2 * part <= 256 for part in one.parts)
        assert len(one.parts) <= MOST_PARTS
        assert one.groups in (2, 3)
        assert OUTPUTS % one.outputs == 0
