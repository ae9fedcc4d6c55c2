"""Cases of act_mul."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size


def _case(
    size: Size,
    kind: str,
    rows: int,
    columns: int,
    pad: int = 0,
    activation: str = "silu",
    limit: float = 0.0,
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        wide = torch.randn(rows, 2 * columns + pad, device=device, dtype=dtype)
        x = wide[:, : 2 * columns] if pad else 4 * wide
        return {"x": x, "activation": activation, "limit": limit}

    name = f"{kind}-{rows}x{columns}{'-strided' if pad else ''}"
    name += "" if activation == "silu" else f"-{activation}"
    name += f"-limit{limit:g}" if limit else ""
    moved = 3 * rows * columns * dtype.itemsize
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


GELUS = ("gelu", "gelu_tanh")

CASES = [
    *(_case(Size.SMALL, kind, 3, 40) for kind in DTYPES),
    _case(Size.SMALL, "f32", 4, 31, pad=5),
    _case(Size.SMALL, "f32", 0, 16),
    *(_case(Size.SMALL, kind, 3, 40, 0, other) for other in GELUS for kind in DTYPES),
    *(_case(Size.SMALL, kind, 3, 40, limit=3.0) for kind in DTYPES),
    *(_case(Size.SMALL, kind, 3, 40, 0, "limited_silu", 3.0) for kind in DTYPES),
    *(_case(Size.SMALL, kind, 3, 40, 0, "clamped_swiglu", 3.0) for kind in DTYPES),
    _case(Size.SMALL, "f32", 4, 31, 5, "gelu", limit=0.5),
    *(_case(Size.FULL, kind, 1823, 781) for kind in DTYPES),
    _case(Size.FULL, "bf16", 183, 1280, limit=1.5),
    _case(Size.FULL, "bf16", 183, 1280, 0, "limited_silu", 1.5),
    _case(Size.FULL, "bf16", 183, 1280, 0, "clamped_swiglu", 7.0),
    *(_case(Size.FULL, kind, 183, 781, 3, other) for other in GELUS for kind in DTYPES),
    _case(Size.FULL, "bf16", 1, 14336),
    _case(Size.FULL, "f32", 3, 5000),
    _case(Size.BENCH, "bf16", 256, 14336),
    _case(Size.BENCH, "bf16", 8192, 14336),
]
