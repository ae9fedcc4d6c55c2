"""Cases of norm_route."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size
from ..route_experts.cases import FAMILIES, Problem

NOISE = 0.005  # of logits; neighbours are four times as far apart, or more


def _case(
    size: Size,
    dtype: torch.dtype,
    named: tuple[str, Problem],
    columns: int,
    wide: bool,
    first: bool,
) -> Case:
    name, problem = named
    kind = torch.float32 if wide else dtype
    rows, experts = problem.tokens, problem.experts

    def make(device: torch.device) -> dict[str, Any]:
        # Rows share a direction, and logits are its multiples: no rounding changes their order.
        direction = torch.randn(columns, device=device)
        noise = torch.randn(rows, columns, device=device)
        x = (2 * direction + noise).to(dtype)
        order = torch.randperm(experts, device=device)
        multiples = torch.linspace(-3, 3, experts, device=device)[order, None]
        weight = multiples * direction + NOISE * torch.randn(experts, columns, device=device)
        weight /= columns
        correction = None
        if problem.bias:  # so small that it decides between few
            correction = torch.randn(experts, device=device) * 1e-3
        return {
            "x": x if first else (x / 2),
            "residual": None if first else (x / 2),
            "scale": 1 + 0.1 * torch.rand(columns, device=device).to(dtype),
            "eps": 1e-6,
            "weight": weight.to(kind),
            "bias": (multiples[:, 0] / 8).to(kind) if wide else None,
            "correction": correction,
            "routing": problem.routing,
        }

    name = f"{name}-{rows}x{columns}{'-wide' if wide else ''}{'-first' if first else ''}"
    moved = experts * columns * kind.itemsize + 4 * rows * columns * dtype.itemsize
    return Case(f"{dtype}-{name}".removeprefix("torch."), size, make, 2 * TOLERANCE[dtype], moved)


def _cases(size: Size, dtype_name: str, rows: tuple[int, ...], columns: int) -> list[Case]:
    names = "qwen3", "gpt-oss", "mixtral", "glm", "odd", "all"
    return [
        _case(
            size,
            DTYPES[dtype_name],
            (name, replace(FAMILIES[name], tokens=count)),
            columns,
            wide=name in ("gpt-oss", "glm"),
            first=name == "mixtral",
        )
        for name in names
        for count in rows
    ]


CASES = [
    *_cases(Size.SMALL, "f32", (1, 3), 72),
    *_cases(Size.SMALL, "f16", (2,), 96),
    *_cases(Size.SMALL, "f32", (0, 17), 40),
    *_cases(Size.FULL, "bf16", (1, 5, 16), 2048),
    *_cases(Size.FULL, "f16", (1, 16, 40), 1000),
    *_cases(Size.BENCH, "bf16", (1, 8), 2048),
]
