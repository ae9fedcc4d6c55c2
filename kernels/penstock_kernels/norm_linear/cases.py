"""Cases of norm_linear."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size


class Kind(Enum):
    """What follows the norm."""

    PLAIN = "plain"
    BIAS = "bias"
    GATED = "gated"


def _case(
    size: Size, dtype_name: str, shape: tuple[int, int, int], kind: Kind, first: bool = False
) -> Case:
    """`shape` is (rows, inputs, outputs); `first` layers have no residual."""
    dtype, (rows, inputs, outputs) = DTYPES[dtype_name], shape
    gated = kind is Kind.GATED
    columns = outputs * (1 + gated)

    def make(device: torch.device) -> dict[str, Any]:
        x, other = torch.randn(2, rows, inputs, device=device, dtype=dtype)
        return {
            "x": x,
            "residual": None if first else other,
            "scale": torch.randn(inputs, device=device, dtype=dtype),
            "eps": 1e-5,
            "weight": torch.randn(columns, inputs, device=device, dtype=dtype) * inputs**-0.5,
            "bias": torch.randn(columns, device=device, dtype=dtype) if kind is Kind.BIAS else None,
            "gated": gated,
        }

    name = f"{dtype_name}-{rows}x{inputs}x{outputs}-{kind.value}{'-first' if first else ''}"
    moved = (columns * inputs + rows * (outputs + 4 * inputs)) * dtype.itemsize
    # The normalised row is rounded in between, gate and up too where cuBLAS multiplies.
    return Case(name, size, make, 2 * TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, dtype, (1, 100, 50), kind) for dtype in DTYPES for kind in Kind),
    *(_case(Size.SMALL, dtype, (1, 96, 30), Kind.PLAIN, first=True) for dtype in ("f32", "f16")),
    *(_case(Size.SMALL, "f16", (3, 192, 70), kind) for kind in Kind),
    _case(Size.SMALL, "f16", (33, 128, 66), Kind.GATED),
    _case(Size.SMALL, "f16", (0, 64, 40), Kind.GATED),
    *(_case(Size.FULL, "f16", (rows, 1216, 777), Kind.GATED) for rows in (1, 3, 16, 33, 65)),
    *(_case(Size.FULL, "bf16", (rows, 1000, 1000), Kind.BIAS) for rows in (1, 8, 64)),
    _case(Size.FULL, "bf16", (1, 8192, 4096), Kind.PLAIN, first=True),
    *(_case(Size.BENCH, "bf16", (rows, 4096, 14336), Kind.GATED) for rows in (1, 16, 64)),
    *(_case(Size.BENCH, "bf16", (rows, 4096, 6144), Kind.PLAIN) for rows in (1, 16)),
    *(_case(Size.BENCH, "bf16", (rows, 2048, 8192), Kind.GATED) for rows in (1, 16)),
]
