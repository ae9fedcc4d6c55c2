"""Cases of silu_mul."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size


def _case(size: Size, kind: str, rows: int, columns: int, pad: int = 0) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        wide = torch.randn(rows, 2 * columns + pad, device=device, dtype=dtype)
        return {"x": 4 * wide[:, : 2 * columns]} if not pad else {"x": wide[:, : 2 * columns]}

    name = f"{kind}-{rows}x{columns}{'-strided' if pad else ''}"
    moved = 3 * rows * columns * dtype.itemsize
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 3, 40) for kind in DTYPES),
    _case(Size.SMALL, "f32", 4, 31, pad=5),
    _case(Size.SMALL, "f32", 0, 16),
    *(_case(Size.FULL, kind, 1823, 781) for kind in DTYPES),
    _case(Size.FULL, "bf16", 1, 14336),
    _case(Size.FULL, "f32", 3, 5000),
    _case(Size.BENCH, "bf16", 256, 14336),
    _case(Size.BENCH, "bf16", 8192, 14336),
]
