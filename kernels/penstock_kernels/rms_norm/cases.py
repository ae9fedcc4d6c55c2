"""Cases of rms_norm."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size


def _case(size: Size, kind: str, rows: int, columns: int, residual: bool, pad: int = 0) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        x = torch.randn(rows, columns + pad, device=device, dtype=dtype)[:, :columns]
        weight = torch.randn(columns, device=device, dtype=dtype)
        other = torch.randn(rows, columns, device=device, dtype=dtype) if residual else None
        return {"x": x, "weight": weight, "eps": 1e-5, "residual": other}

    name = f"{kind}-{rows}x{columns}{'-residual' if residual else ''}{'-strided' if pad else ''}"
    moved = (4 if residual else 2) * rows * columns * dtype.itemsize
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 3, 96, residual) for kind in DTYPES for residual in (False, True)),
    _case(Size.SMALL, "f32", 5, 33, True, pad=7),
    _case(Size.SMALL, "f32", 0, 64, True),
    *(_case(Size.FULL, kind, 1823, 781, True) for kind in DTYPES),
    _case(Size.FULL, "bf16", 1, 4096, True),
    _case(Size.FULL, "f16", 257, 5120, False, pad=8),
    _case(Size.FULL, "f32", 2, 16384, True),
    _case(Size.BENCH, "bf16", 256, 4096, True),
    _case(Size.BENCH, "bf16", 16384, 4096, True),
]
