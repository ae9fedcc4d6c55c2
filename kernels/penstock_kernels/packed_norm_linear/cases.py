"""Cases of packed_norm_linear."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size
from ..packed_linear.cases import Problem, weight_of
from ..packed_linear.plan import FLOAT8_ROWS
from ..packed_linear.weight import Kind


def _case(size: Size, kind: Kind, dtype_name: str, problem: Problem, first: bool = False) -> Case:
    """`first` layers have no residual."""
    dtype, inputs = DTYPES[dtype_name], problem.inputs

    def make(device: torch.device) -> dict[str, Any]:
        x, other = torch.randn(2, problem.rows, inputs, device=device, dtype=dtype)
        bias = torch.randn(problem.outputs, device=device, dtype=dtype) if problem.bias else None
        return {
            "x": x,
            "residual": None if first else other,
            "scale": torch.randn(inputs, device=device, dtype=dtype),
            "eps": 1e-5,
            "weight": weight_of(kind, dtype, problem, device),
            "bias": bias,
            "gated": problem.gated,
        }

    group = problem.group or inputs
    name = f"{kind.value}-{dtype_name}-{problem.rows}x{inputs}x{problem.outputs}-g{group}"
    for flag in ("zeros", "bias", "gated"):
        name += f"-{flag}" if getattr(problem, flag) else ""
    scales = inputs // group * problem.outputs * dtype.itemsize
    moved = problem.outputs * inputs * kind.bits // 8 + scales
    # The normalised row is rounded in between, to 4 bits where a GPU multiplies float8.
    float8 = kind is Kind.FP8 and problem.group == 0 and problem.rows > FLOAT8_ROWS
    tolerance = (2 + problem.gated) * (0.03 if float8 else TOLERANCE[dtype])
    return Case(f"{name}{'-first' if first else ''}", size, make, tolerance, bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, "f16", Problem(1, 64, 256, gated=True)) for kind in Kind),
    *(_case(Size.SMALL, kind, "f32", Problem(2, 70, 192, 32, bias=True)) for kind in Kind),
    _case(Size.SMALL, Kind.INT4, "f16", Problem(0, 64, 128)),
    *(
        _case(Size.FULL, kind, dtype, Problem(rows, 2080, 1600, 0, kind.integer, gated=gated), True)
        for kind in Kind
        for rows in (1, 3)
        for dtype, gated in (("bf16", False), ("f16", True))
    ),
    *(
        _case(Size.FULL, kind, "bf16", Problem(1, 1000, 1280, group, kind.integer, bias=True))
        for kind in Kind
        for group in (128, 64, 32, 16, 0)
    ),
    *(
        _case(Size.FULL, Kind.FP8, "bf16", Problem(rows, 528, inputs, 0, gated=gated), first)
        for rows, inputs, gated, first in (
            (65, 1600, False, True),
            (100, 200, True, False),
            (300, 4096, False, False),
        )
    ),
    *(
        _case(Size.BENCH, kind, "bf16", Problem(1, outputs, 4096, gated=outputs == 28672))
        for kind in (Kind.INT4, Kind.FP8)
        for outputs in (6144, 28672)
    ),
]
