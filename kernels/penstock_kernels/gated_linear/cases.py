"""Cases of gated_linear."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size


def _case(size: Size, kind: str, rows: int, outputs: int, inputs: int) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        x = torch.randn(rows, inputs, device=device, dtype=dtype)
        weight = torch.randn(2 * outputs, inputs, device=device, dtype=dtype) * inputs**-0.5
        return {"x": x, "weight": weight}

    name = f"{kind}-{rows}x{inputs}x2x{outputs}"
    moved = (2 * outputs * inputs + rows * (outputs + inputs)) * dtype.itemsize
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 1, 50, 100) for kind in DTYPES),
    *(_case(Size.SMALL, kind, 3, 70, 192) for kind in ("f32", "f16")),
    _case(Size.SMALL, "f16", 33, 66, 128),
    _case(Size.SMALL, "f16", 0, 40, 64),
    *(_case(Size.FULL, "f16", rows, 777, 1216) for rows in (1, 3, 16, 33, 63)),
    *(_case(Size.FULL, "bf16", rows, 1000, 1000) for rows in (1, 8, 64)),
    *(_case(Size.BENCH, "bf16", rows, 14336, 4096) for rows in (1, 16, 64)),
    *(_case(Size.BENCH, "bf16", rows, 8192, 2048) for rows in (1, 16)),
]
