"""Cases of packed_linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size
from .plan import FLOAT8_ROWS
from .weight import Kind, PackedWeight, pack


@dataclass(frozen=True)
class Problem:
    """Shapes of a case."""

    rows: int
    outputs: int
    inputs: int
    group: int = 128
    zeros: bool = False
    bias: bool = False
    gated: bool = False
    wide_scales: bool = False
    """Whether scales are float32."""


def product(kind: Kind, problem: Problem) -> Case:
    """A case for benchmarks, of bfloat16 activations."""
    return _case(Size.BENCH, kind, "bf16", problem)


def _case(size: Size, kind: Kind, dtype_name: str, problem: Problem) -> Case:
    dtype = DTYPES[dtype_name]
    group = problem.group or problem.inputs

    def make(device: torch.device) -> dict[str, Any]:
        # Rows of x may be strided, as slices of fused outputs are.
        pad = 0 if size is Size.BENCH else 8
        x = torch.randn(problem.rows, problem.inputs + pad, device=device, dtype=dtype)
        addend = torch.randn(problem.outputs, device=device, dtype=dtype) if problem.bias else None
        return {
            "x": x[:, : problem.inputs],
            "weight": weight_of(kind, dtype, problem, device),
            "bias": addend,
            "gated": problem.gated,
        }

    name = f"{kind.value}-{dtype_name}-{problem.rows}x{problem.inputs}x{problem.outputs}-g{group}"
    for flag in ("zeros", "bias", "gated", "wide_scales"):
        name += f"-{flag}" if getattr(problem, flag) else ""
    scales = problem.inputs // group * problem.outputs * dtype.itemsize
    moved = problem.outputs * problem.inputs * kind.bits // 8 + scales
    # Weights are rounded once more where no group is summed by itself; x is rounded to 4 bits where
    # a GPU multiplies float8.
    float8 = kind is Kind.FP8 and problem.group == 0 and problem.rows > FLOAT8_ROWS
    tolerance = (2 + problem.gated) * (0.03 if float8 else TOLERANCE[dtype])
    return Case(name, size, make, tolerance, bytes_moved=moved)


def weight_of(
    kind: Kind, dtype: torch.dtype, problem: Problem, device: torch.device
) -> PackedWeight:
    """Every code occurs. Scales differ by a factor of 8."""
    shape = problem.inputs // (problem.group or problem.inputs), problem.outputs
    codes = torch.randint(1 << kind.bits, (problem.outputs, problem.inputs), device=device)
    if kind is Kind.FP8:
        codes[codes & 0x7F == 0x7F] = 0x7E  # NaN
    largest = {Kind.INT4: 8, Kind.INT8: 128, Kind.FP8: 100, Kind.FP4: 4}[kind]
    kept = torch.float32 if problem.wide_scales else dtype
    scales = torch.exp2(-3 * torch.rand(shape, device=device)) / largest * problem.inputs**-0.5
    zeros = torch.randint(1 << kind.bits, shape, device=device).to(dtype) if problem.zeros else None
    words = pack(codes.to(torch.uint8), kind)
    return PackedWeight(words, scales.to(kept), zeros, kind, problem.inputs)


def _small() -> list[Case]:
    found = []
    for kind in Kind:
        integer = kind.integer
        found += [
            _case(Size.SMALL, kind, "f16", Problem(1, 64, 256)),
            _case(Size.SMALL, kind, "f32", Problem(3, 70, 192, 32, zeros=integer, bias=True)),
            _case(Size.SMALL, kind, "f16", Problem(17, 128, 64, 16, gated=True)),
            _case(Size.SMALL, kind, "f16", Problem(2, 140, 80, 0, zeros=integer, gated=True)),
        ]
    found.append(_case(Size.SMALL, Kind.INT4, "f16", Problem(0, 64, 64, 64)))
    return found


def _full() -> list[Case]:
    found = []
    for kind in Kind:
        integer = kind.integer
        found += [
            _case(Size.FULL, kind, dtype, Problem(rows, 1000, 1024, zeros=zeros, bias=bias))
            for rows in (1, 5, 16, 33, 64, 65, 200, 600)
            for dtype, zeros, bias in (("bf16", False, True), ("f16", integer, False))
        ]
        found += [
            _case(
                Size.FULL, kind, "bf16", Problem(rows, 1536, 640, group, zeros=integer, gated=True)
            )
            for rows in (1, 20, 64, 130)
            for group in (128, 64, 32, 16, 0)
        ]
        found += [
            _case(Size.FULL, kind, "bf16", Problem(rows, 520, 1088, group, wide_scales=True))
            for rows in (1, 40, 300)
            for group in (64, 32, 16, 0)
        ]
        found.append(_case(Size.FULL, kind, "bf16", Problem(9, 333, 200, 0)))
        found.append(_case(Size.FULL, kind, "bf16", Problem(3, 4096, 14336)))
        # One row has 4 or 8 warps, a stage or several, and programs that share inputs; the last has
        # too many of them.
        sizes = (4128, 4096), (6144, 4096), (208, 14336), (272, 20480), (80, 33024)
        for outputs, inputs in sizes:
            found.append(_case(Size.FULL, kind, "bf16", Problem(1, outputs, inputs, zeros=integer)))
        uneven = Problem(1, 280, 17040, 0, zeros=integer, bias=True)
        found.append(_case(Size.FULL, kind, "bf16", uneven))
        found.append(_case(Size.FULL, kind, "bf16", Problem(1600, 512, 384)))
        # Many rows: tiles of two blocks of outputs, an odd number of them, more than one program
        # takes, and more blocks of rows than are computed at a time.
        found += [
            _case(Size.FULL, kind, "bf16", Problem(rows, outputs, 640, group, integer, gated=gated))
            for rows, outputs, gated in ((500, 6200, False), (200, 14208, True))
            for group in (128, 64, 32, 16, 0)
        ]
        found.append(_case(Size.FULL, kind, "f16", Problem(2500, 1040, 256, bias=True)))
        found.append(_case(Size.FULL, kind, "bf16", Problem(2500, 4096, 200, 0, wide_scales=True)))
        # One row of scales, as a format's reader leaves it.
        found.append(_case(Size.FULL, kind, "bf16", Problem(2, 256, 512, 0, wide_scales=True)))
    return found


CASES = [
    *_small(),
    *_full(),
    *(
        _case(Size.BENCH, kind, "bf16", Problem(rows, outputs, inputs, gated=gated))
        for kind in (Kind.INT4, Kind.FP8)
        for rows in (1, 16, 32, 64, 256, 2048)
        for outputs, inputs, gated in (
            (6144, 4096, False),
            (4096, 4096, False),
            (28672, 4096, True),
            (4096, 14336, False),
        )
    ),
]
