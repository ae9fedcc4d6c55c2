"""What is compiled before steps need it."""

from __future__ import annotations

import pytest
from penstock.worker import rehearsal, shape
from penstock_kernels.linear.tiling import Tiling, tiling


def tilings(rows: set[int], outputs: int, programs: int) -> set[Tiling | None]:
    return {tiling(count, outputs, programs) for count in rows}


@pytest.mark.parametrize("programs", [132, 114, 78])  # of an H200, an H100 by PCIe, an H20
@pytest.mark.parametrize("outputs", [14336, 8960, 8192, 7168, 4480, 3584])
def test_tiles_of_all_padded_steps_are_rehearsed(outputs: int, programs: int) -> None:
    decodes = {shape.padded_decodes(count) for count in range(1, 513)}
    met = tilings({*shape.TOKENS, *decodes}, outputs, programs)
    assert met <= tilings({*rehearsal.TOKENS, *rehearsal.DECODES}, outputs, programs) | {None}
