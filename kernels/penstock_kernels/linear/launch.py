"""Chooses a plan for a product and launches it. `linear` and `norm_linear` share this."""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime.errors import OutOfResources

from ..act_mul import act_mul
from ..arch_kernel import ArchKernel
from ..device import (
    arrivals,
    divided_up,
    early_launch,
    is_hopper,
    power_of_two,
    processors,
    shared_bytes,
)
from ..rms_norm import NormInput
from .gemv import gemv
from .plan import COUNTERS, FEW, LEAST_ROWS, Gemv, Library, Plan, Problem, Skinny, bucket, rule
from .skinny import skinny
from .table import tuned
from .tiling import Tiling, tiling

HOPPER = ArchKernel(f"{__package__}.hopper", is_hopper)
# Buckets of rows whose plan needs more of the device than it has: cuBLAS multiplies instead.
TOO_LARGE: set[tuple[Problem, int | None]] = set()
log = logging.getLogger("penstock.kernels")


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool) -> Tensor:
    """Returns x W^T + b, gated or not, with the plan for these shapes."""
    problem = _problem(weight, gated)
    try:
        return run(_plan(x, weight, problem), problem, x, weight, bias)
    except OutOfResources as error:
        _give_up(problem, len(x), error)
        return multiply(x, weight, bias, gated)


def multiply_normed(
    norm_input: NormInput, weight: Tensor, bias: Tensor | None, gated: bool
) -> tuple[Tensor, Tensor]:
    """Returns (the product of the normalised sum, gated or not; the sum)."""
    problem = _problem(weight, gated)
    plan = _plan(norm_input.x, weight, problem)
    if not isinstance(plan, Gemv):
        x, total = norm_input.normed()
        return multiply(x, weight, bias, gated), total
    x, total = norm_input.x, norm_input.x
    if norm_input.residual is not None:
        total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = torch.empty((1, problem.outputs), dtype=x.dtype, device=x.device)
    try:
        _launch_gemv(plan, problem, (norm_input, total), weight, bias, out)
    except OutOfResources as error:
        _give_up(problem, len(x), error)
        return multiply_normed(norm_input, weight, bias, gated)
    return out, total


def library(x: Tensor, weight: Tensor) -> bool:
    """Whether the plan for the product of these shapes, not gated, is cuBLAS."""
    return isinstance(_plan(x, weight, _problem(weight, gated=False)), Library)


def _problem(weight: Tensor, gated: bool) -> Problem:
    return Problem(weight.shape[0] // (2 if gated else 1), weight.shape[1], gated)


def _plan(x: Tensor, weight: Tensor, problem: Problem) -> Plan:
    rows = bucket(x.shape[0])
    sixteen_bits = x.dtype in (torch.bfloat16, torch.float16)
    if not x.numel() or rows is None or not sixteen_bits or not weight.is_contiguous():
        return Library()
    if (problem, rows) in TOO_LARGE:
        return Library()
    if not x.is_cuda:  # Triton's interpreter
        return rule(problem, rows, processors(x.device), shared_bytes(x.device))
    return choose(x.device, problem, rows)


def _give_up(problem: Problem, rows: int, error: OutOfResources) -> None:
    """Disables the kernels for this bucket; the plans of other buckets may fit."""
    if (problem, bucket(rows)) in TOO_LARGE:  # then it is not the plan
        raise error
    TOO_LARGE.add((problem, bucket(rows)))
    text = "the plan for %d rows of %s does not fit this GPU, so cuBLAS multiplies: %s"
    log.warning(text, rows, problem, error)


@lru_cache(maxsize=4096)
def choose(device: torch.device, problem: Problem, rows: int) -> Plan:
    """Returns the plan for a bucket of rows on a CUDA device: the measured one, or the rule's."""
    found = tuned(torch.cuda.get_device_name(device)).get((problem, rows))
    return found or rule(problem, rows, processors(device), shared_bytes(device))


def run(plan: Plan, problem: Problem, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the product, with a given plan."""
    if isinstance(plan, Library):
        return _by_library(problem, x, weight, bias)
    out = torch.empty((x.shape[0], problem.outputs), dtype=x.dtype, device=x.device)
    if isinstance(plan, Gemv):
        _launch_gemv(plan, problem, x, weight, bias, out)
    else:
        _launch_skinny(plan, problem, x, weight, bias, out)
    return out


def _by_library(problem: Problem, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    tiles = _tiles(problem, x)
    if tiles is not None:
        out = torch.empty((len(x), problem.outputs), dtype=x.dtype, device=x.device)
        if HOPPER.launch(x.device, tiles, x, weight, out):
            return out
    product = F.linear(x, weight, bias)
    return act_mul(product) if problem.gated else product


def _tiles(problem: Problem, x: Tensor) -> Tiling | None:
    """Returns the tiles of the gated product on a Hopper GPU; None if cuBLAS computes it."""
    if not problem.gated or len(x) <= FEW or not is_hopper(x.device):
        return None
    return tiling(len(x), problem.outputs, processors(x.device))


def _launch_gemv(
    plan: Gemv,
    problem: Problem,
    source: Tensor | tuple[NormInput, Tensor],
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
) -> None:
    """Launches `gemv`. `source` is x, or the inputs of the norm and the output of its sum."""
    x, residual, scale, total, eps = source, None, None, None, 0.0
    if isinstance(source, tuple):
        (x, residual, scale, eps), total = source
    tiles = divided_up(problem.outputs, plan.tile)
    programs = min(tiles, plan.programs * processors(weight.device)) if plan.programs else tiles
    early = early_launch(weight.device)
    gemv[(programs,)](
        x,
        residual,
        scale,
        total,
        weight,
        bias,
        out,
        problem.outputs,
        problem.inputs,
        eps,
        NORM=scale is not None,
        HAS_RESIDUAL=residual is not None,
        GATED=problem.gated,
        HAS_BIAS=bias is not None,
        TILE=plan.tile,
        DEPTH=power_of_two(problem.inputs),
        LOOP=plan.programs > 0,
        EARLY=early,
        num_warps=plan.warps,
        launch_pdl=early,
    )


def _launch_skinny(
    plan: Skinny, problem: Problem, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    rows = x.shape[0]
    turns = divided_up(problem.inputs, plan.depth)
    span = divided_up(turns, plan.splits) * plan.depth
    partial, arrived = out, out
    if plan.splits > 1:
        shape = (plan.splits, rows, problem.outputs)
        partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        arrived = arrivals(x.device, COUNTERS)
    early = early_launch(x.device)
    skinny[(divided_up(problem.outputs, plan.tile), plan.splits)](
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
