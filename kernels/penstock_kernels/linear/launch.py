"""Chooses a plan for a product and launches it. `linear` and `gated_linear` share this."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ..pdl import early_launch
from ..silu_mul import silu_mul
from .gemv import gemv
from .plan import Gemv, Library, Plan, Problem, Skinny, bucket, choose, rule
from .skinny import skinny

# Tiles that split their inputs and programs of one launch that count their arrival.
COUNTERS = 1 << 14
# Smallest second side of a matrix instruction.
LEAST_ROWS = 16


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool) -> Tensor:
    """x W^T + b, or the gated product of W's two halves, by the plan for these shapes."""
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    problem = Problem(outputs, weight.shape[1], gated)
    return run(_plan(x, weight, problem), problem, x, weight, bias)


def _plan(x: Tensor, weight: Tensor, problem: Problem) -> Plan:
    rows = bucket(x.shape[0])
    sixteen_bits = x.dtype in (torch.bfloat16, torch.float16)
    if not x.numel() or rows is None or not sixteen_bits or not weight.is_contiguous():
        return Library()
    if not x.is_cuda:  # Triton's interpreter
        return rule(problem, rows, processors=4)
    return choose(x.device, problem, rows)


def run(plan: Plan, problem: Problem, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product, by a given plan."""
    if isinstance(plan, Library):
        product = F.linear(x, weight, bias)
        return silu_mul(product) if problem.gated else product
    out = torch.empty((x.shape[0], problem.outputs), dtype=x.dtype, device=x.device)
    launch = _run_gemv if isinstance(plan, Gemv) else _run_skinny
    launch(plan, problem, x, weight, bias, out)  # type: ignore[arg-type]
    return out


def _run_gemv(
    plan: Gemv, problem: Problem, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    tiles = triton.cdiv(problem.outputs, plan.tile)
    programs = min(tiles, plan.programs * _processors(x.device)) if plan.programs else tiles
    early = early_launch(x.device)
    gemv[(programs,)](
        x,
        weight,
        x if bias is None else bias,
        out,
        problem.outputs,
        problem.inputs,
        GATED=problem.gated,
        HAS_BIAS=bias is not None,
        TILE=plan.tile,
        DEPTH=triton.next_power_of_2(problem.inputs),
        LOOP=plan.programs > 0,
        EARLY=early,
        num_warps=plan.warps,
        launch_pdl=early,
    )


def _run_skinny(
    plan: Skinny, problem: Problem, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    rows = x.shape[0]
    turns = triton.cdiv(problem.inputs, plan.depth)
    span = triton.cdiv(turns, plan.splits) * plan.depth
    partial, arrived = out, out
    if plan.splits > 1:
        shape = (plan.splits, rows, problem.outputs)
        partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        arrived = _counters(x.device)
    early = early_launch(x.device)
    skinny[(triton.cdiv(problem.outputs, plan.tile), plan.splits)](
        x,
        weight,
        x if bias is None else bias,
        out,
        partial,
        arrived,
        x.stride(0),
        rows,
        problem.outputs,
        problem.inputs,
        span,
        GATED=problem.gated,
        HAS_BIAS=bias is not None,
        EVEN=span * plan.splits == problem.inputs,
        ROWS=max(LEAST_ROWS, bucket(rows) or rows),
        TILE=plan.tile,
        DEPTH=plan.depth,
        SPLITS=plan.splits,
        STAGES=plan.stages,
        EARLY=early,
        num_warps=plan.warps,
        launch_pdl=early,
    )


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def _counters(device: torch.device) -> Tensor:
    """Zero between launches: every launch leaves them as it found them. One stream at a time."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)
