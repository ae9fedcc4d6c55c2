"""Cases of packed_act_linear."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size
from ..packed_linear.cases import Problem, weight_of
from ..packed_linear.plan import FLOAT8_ROWS
from ..packed_linear.weight import Kind


def _case(size: Size, kind: Kind, dtype_name: str, problem: Problem) -> Case:
    dtype, inputs, group = DTYPES[dtype_name], problem.inputs, problem.group or problem.inputs

    def make(device: torch.device) -> dict[str, Any]:
        # Rows of x may be strided, as slices of fused outputs are.
        pad = 0 if size is Size.BENCH else 8
        x = torch.randn(problem.rows, 2 * inputs + pad, device=device, dtype=dtype)
        bias = torch.randn(problem.outputs, device=device, dtype=dtype) if problem.bias else None
        weight = weight_of(kind, dtype, problem, device)
        return {"x": x[:, : 2 * inputs], "weight": weight, "bias": bias}

    name = f"{kind.value}-{dtype_name}-{problem.rows}x{inputs}x{problem.outputs}-g{group}"
    scales = inputs // group * problem.outputs * dtype.itemsize
    moved = problem.outputs * inputs * kind.bits // 8 + scales
    # The gated row is rounded in between, to 4 bits where a GPU multiplies float8.
    float8 = kind is Kind.FP8 and problem.group == 0 and problem.rows > FLOAT8_ROWS
    tolerance = 3 * (0.03 if float8 else TOLERANCE[dtype])
    return Case(
        f"{name}{'-bias' if problem.bias else ''}", size, make, tolerance, bytes_moved=moved
    )


CASES = [
    *(_case(Size.SMALL, kind, "f16", Problem(3, 70, 256, 32, bias=True)) for kind in Kind),
    _case(Size.SMALL, Kind.FP8, "f32", Problem(0, 64, 128)),
    *(
        _case(Size.FULL, Kind.FP8, "bf16", Problem(rows, outputs, inputs, group, bias=bias))
        for group in (0, 128)
        for rows, outputs, inputs, bias in (
            (1, 64, 256, False),
            (65, 528, 1664, True),
            (300, 4096, 14336, False),
        )
    ),
    _case(Size.FULL, Kind.FP8, "bf16", Problem(100, 48, 200, 0)),
    _case(Size.FULL, Kind.INT4, "bf16", Problem(300, 528, 256)),
    *(
        _case(Size.BENCH, Kind.FP8, "bf16", Problem(rows, 4096, 14336, 0))
        for rows in (256, 1024, 8192)
    ),
]
