"""Cases of gated_head_norm."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size


def _case(size: Size, kind: str, tokens: int, heads: int, elements: int) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        x = torch.randn(tokens, heads, elements, device=device, dtype=dtype)
        # The gates are the last columns of a fused projection.
        fused = torch.randn(tokens, 40 + heads * elements, device=device, dtype=dtype)
        gate = fused[:, 40:].unflatten(1, (heads, elements))
        weight = torch.randn(elements, device=device, dtype=dtype)
        return {"x": x, "gate": gate, "weight": weight, "eps": 1e-6}

    moved = 3 * tokens * heads * elements * dtype.itemsize
    name = f"{kind}-{tokens}x{heads}x{elements}"
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 3, 5, 32) for kind in DTYPES),
    _case(Size.SMALL, "f32", 2, 3, 40),
    _case(Size.SMALL, "f32", 0, 2, 64),
    *(_case(Size.FULL, kind, 333, 12, 128) for kind in DTYPES),
    _case(Size.BENCH, "bf16", 1, 32, 128),
    _case(Size.BENCH, "bf16", 256, 32, 128),
    _case(Size.BENCH, "bf16", 8192, 32, 128),
]
