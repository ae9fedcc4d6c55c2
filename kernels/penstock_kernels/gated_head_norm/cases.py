"""Cases of gated_head_norm."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size


def _case(
    size: Size,
    kind: str,
    tokens: int,
    heads: int,
    elements: int,
    first: bool = False,
    activation: str = "silu",
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        x = torch.randn(tokens, heads, elements, device=device, dtype=dtype)
        # The gates are the last columns of a fused projection.
        fused = torch.randn(tokens, 40 + heads * elements, device=device, dtype=dtype)
        gate = fused[:, 40:].unflatten(1, (heads, elements))
        shape = (heads, elements) if first else (elements,)
        weight = torch.randn(shape, device=device, dtype=dtype)
        found = {"x": x, "gate": gate, "weight": weight, "eps": 1e-6}
        return {**found, "gate_first": first, "activation": activation}

    moved = 3 * tokens * heads * elements * dtype.itemsize
    name = f"{kind}-{tokens}x{heads}x{elements}{'-gate-first' if first else ''}"
    name += "" if activation == "silu" else f"-{activation}"
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 3, 5, 32) for kind in DTYPES),
    _case(Size.SMALL, "f32", 2, 3, 40),
    _case(Size.SMALL, "f32", 0, 2, 64),
    *(_case(Size.SMALL, kind, 3, 2, 40, first=True) for kind in DTYPES),
    *(_case(Size.SMALL, kind, 3, 5, 24, activation="sigmoid") for kind in DTYPES),
    _case(Size.FULL, "bf16", 333, 32, 128, activation="sigmoid"),
    _case(Size.FULL, "bf16", 77, 8, 512, first=True),
    _case(Size.FULL, "bf16", 77, 1, 8192, first=True),
    *(_case(Size.FULL, kind, 333, 12, 128) for kind in DTYPES),
    _case(Size.BENCH, "bf16", 1, 32, 128),
    _case(Size.BENCH, "bf16", 256, 32, 128),
    _case(Size.BENCH, "bf16", 8192, 32, 128),
]
