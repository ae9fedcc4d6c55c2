"""Cases of linear."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size


def _case(size: Size, kind: str, rows: int, outputs: int, inputs: int, bias: bool = False) -> Case:
    return _made(size, (kind, rows, outputs, inputs), bias, gated=False)


def _made(size: Size, shape: tuple[str, int, int, int], bias: bool, gated: bool) -> Case:
    kind, rows, outputs, inputs = shape
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        # Rows of x may be strided, as slices of fused outputs are.
        pad = 0 if size is Size.BENCH else 8
        x = torch.randn(rows, inputs + pad, device=device, dtype=dtype)[:, :inputs]
        weight = torch.randn(outputs, inputs, device=device, dtype=dtype) * inputs**-0.5
        addend = torch.randn(outputs, device=device, dtype=dtype) if bias else None
        return {"x": x, "weight": weight, "bias": addend, "gated": gated}

    name = f"{kind}-{rows}x{inputs}x{outputs}{'-bias' if bias else ''}{'-gated' if gated else ''}"
    moved = (outputs * inputs + rows * (outputs + inputs)) * dtype.itemsize
    # A gated product is rounded once more where cuBLAS multiplies.
    return Case(name, size, make, (1 + gated) * TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 1, 50, 100, bias) for kind in DTYPES for bias in (False, True)),
    *(_case(Size.SMALL, kind, 3, 70, 192, bias=True) for kind in ("f32", "f16")),
    _case(Size.SMALL, "f16", 17, 130, 64),
    _case(Size.SMALL, "f16", 33, 66, 128),
    _case(Size.SMALL, "f16", 5, 40, 1024),
    _case(Size.SMALL, "f16", 0, 40, 64),
    *(_made(Size.SMALL, ("f16", rows, 70, 192), bias=False, gated=True) for rows in (0, 1, 3)),
    *(_made(Size.FULL, ("bf16", rows, 1554, 1216), False, gated=True) for rows in (1, 9, 64, 65)),
    _made(Size.FULL, ("bf16", 1030, 1554, 1216), False, gated=True),
    _made(Size.FULL, ("bf16", 1025, 1536, 1216), False, gated=True),
    _made(Size.FULL, ("f16", 4321, 1024, 704), False, gated=True),
    # Enough tiles to fill most GPUs' multiprocessors, and more than there are; rings go round.
    *(_made(Size.FULL, ("bf16", rows, 28672, 704), False, gated=True) for rows in (150, 230, 384)),
    _made(Size.FULL, ("f16", 190, 59136, 704), False, gated=True),
    *(_case(Size.FULL, "bf16", rows, 1000, 1000, bias=True) for rows in (1, 2, 7, 64, 65, 200)),
    *(_case(Size.FULL, "f16", rows, 777, 1216) for rows in (1, 3, 16, 33, 63)),
    *(_case(Size.FULL, "bf16", rows, 4096, 4096) for rows in (1, 9, 40)),
    _case(Size.FULL, "f32", 3, 100, 200, bias=True),
    _case(Size.FULL, "bf16", 1, 300, 20000),
    *(
        _made(Size.BENCH, ("bf16", rows, 28672, 4096), False, gated=True)
        for rows in (1024, 2048, 8192)
    ),
    *(
        _case(Size.BENCH, "bf16", rows, outputs, inputs)
        for rows in (1, 16, 64)
        for outputs, inputs in ((6144, 4096), (4096, 4096), (4096, 14336), (128256, 4096))
    ),
    *(
        _case(Size.BENCH, "bf16", rows, outputs, inputs)
        for rows in (1, 16)
        for outputs, inputs in ((3072, 2048), (2048, 2048), (2048, 8192), (128256, 2048))
    ),
]
