"""Triton kernels of linear, the choice between them and cuBLAS, and their launches.

`gemv` multiplies one row: whole rows of the weights are in registers. A program starts its first
loads of the weights before it waits for the kernel that computes x, so memory stays busy between
kernels (see `early_launch`).

`skinny` multiplies up to 256 rows on the matrix units; few are bound by reading the weights. The
product is computed transposed, weights [TILE, k] times x^T [k, ROWS], so that the many weight rows,
not the few rows of x, fill the long side of the matrix instruction. Programs that split the inputs
of a tile leave partial sums in memory; the last of them to arrive adds all of them up, in order of
the splits, so who is last changes nothing.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import logging
from functools import lru_cache

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime.errors import OutOfResources

from ..act_mul import act_mul
from ..device import (
    arrivals,
    divided_up,
    early_launch,
    is_hopper,
    power_of_two,
    processors,
    shared_bytes,
)
from ..op import ArchKernel
from ..rms_norm import NormInput
from .plan import (
    COUNTERS,
    FEW,
    LEAST_ROWS,
    Gemv,
    Library,
    Plan,
    Problem,
    Skinny,
    Tiling,
    bucket,
    rule,
    tiling,
)
from .table import tuned

HOPPER = ArchKernel(f"{__package__}.hopper", is_hopper)
# Buckets of rows whose plan needs more of the device than it has: cuBLAS multiplies instead.
TOO_LARGE: set[tuple[Problem, int | None]] = set()
log = logging.getLogger("penstock.kernels")


@triton.jit
def _tile(weight, tile, outputs, inputs, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """Loads a tile [TILE, DEPTH] of the weights; does not read beyond their end."""
    n = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    k = tl.arange(0, DEPTH)
    at = weight + n[:, None] * inputs + k[None, :]
    return tl.load(at, (n < outputs)[:, None] & (k < inputs)[None, :], other=0)


@triton.jit
def _products(w, x):
    return tl.sum(w.to(tl.float32) * x.to(tl.float32)[None, :], 1)


@triton.jit
def _row(
    x,
    residual,
    scale,
    total,
    inputs,
    eps,
    NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Returns x, or with NORM its rms_norm; the first program stores the sum in `total`."""
    k = tl.arange(0, DEPTH)
    row = tl.load(x + k, k < inputs, other=0)
    if HAS_RESIDUAL:
        addend = tl.load(residual + k, k < inputs, other=0).to(tl.float32)
        row = (row.to(tl.float32) + addend).to(row.dtype)
        if tl.program_id(0) == 0:
            tl.store(total + k, row, k < inputs)
    if NORM:
        wide = row.to(tl.float32)
        normed = wide * tl.rsqrt(tl.sum(wide * wide) / inputs + eps)
        row = (normed * tl.load(scale + k, k < inputs, other=0).to(tl.float32)).to(row.dtype)
    return row


@triton.jit
def gemv(
    x,
    residual,
    scale,
    total_row,
    weight,
    bias,
    out,
    outputs,
    inputs,
    eps,
    NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    LOOP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out [outputs] = x [inputs] weight^T; DEPTH is a power of 2 not below `inputs`.

    With NORM, every program normalises x itself first; this costs less than another launch.
    """
    tile = tl.program_id(0)
    up_weight = weight + outputs.to(tl.int64) * inputs
    w = _tile(weight, tile, outputs, inputs, TILE, DEPTH)
    if GATED:
        up_w = _tile(up_weight, tile, outputs, inputs, TILE, DEPTH)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = _row(x, residual, scale, total_row, inputs, eps, NORM, HAS_RESIDUAL, DEPTH)
    tiles = tl.cdiv(outputs, TILE) if LOOP else tile + 1
    while tile < tiles:
        if LOOP:
            following = tile + tl.num_programs(0)
            next_w = _tile(weight, following, outputs, inputs, TILE, DEPTH)
            if GATED:
                next_up_w = _tile(up_weight, following, outputs, inputs, TILE, DEPTH)
        total = _products(w, row)
        if GATED:
            total = total * tl.sigmoid(total) * _products(up_w, row)
        n = tile * TILE + tl.arange(0, TILE)
        if HAS_BIAS:
            total += tl.load(bias + n, n < outputs, other=0).to(tl.float32)
        tl.store(out + n, total.to(out.dtype.element_ty), n < outputs)
        if LOOP:
            w = next_w
            if GATED:
                up_w = next_up_w
            tile = following
        else:
            tile = tiles


@triton.jit
def _weights(at, k, end, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(at)
    return tl.load(at, (k < end)[None, :], other=0)


@triton.jit
def sum_of_splits(mine, partial, arrived, plane, keep, SPLITS: tl.constexpr):
    """(whether this program came last, and then the sum of all splits).

    `partial` points at split 0 of this tile, `plane` elements before the next split. The counter
    is back at 0 afterwards.
    """
    tl.store(partial + tl.program_id(1) * plane, mine, keep)
    tl.debug_barrier()
    last = tl.atomic_add(arrived, 1, sem="acq_rel") == SPLITS - 1
    total = tl.zeros_like(mine)
    if last:
        for split in tl.static_range(SPLITS):
            total += tl.load(partial + split * plane, keep, other=0, cache_modifier=".cg")
        tl.store(arrived, 0)
    return last, total


@triton.jit(do_not_specialize=["rows"])
def skinny(
    x,
    weight,
    bias,
    out,
    partial,
    arrived,
    x_stride,
    rows,
    outputs,
    inputs,
    span,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out [rows, outputs] = x [rows, inputs] weight^T; split i takes inputs from i * span on."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    begin = tl.program_id(1) * span
    end = tl.minimum(begin + span, inputs)
    n = tl.program_id(0) * TILE + tl.arange(0, TILE)
    r, k = tl.arange(0, ROWS), tl.arange(0, DEPTH)
    live, keep = r[None, :] < rows, (n[:, None] < outputs) & (r[None, :] < rows)
    # Rows beyond the end repeat the last one: no mask on the loads of weights.
    w_at = weight + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * inputs + k[None, :]
    x_at = x + r.to(tl.int64)[None, :] * x_stride + k[:, None]
    total = tl.zeros([TILE, ROWS], tl.float32)
    up = tl.zeros([TILE, ROWS], tl.float32)
    for at in tl.range(begin, end, DEPTH, num_stages=STAGES):
        w = _weights(w_at + at, at + k, end, EVEN)
        v = tl.load(x_at + at, live if EVEN else live & (at + k < end)[:, None], other=0)
        total = tl.dot(w, v, total)
        if GATED:
            up_w = _weights(w_at + outputs.to(tl.int64) * inputs + at, at + k, end, EVEN)
            up = tl.dot(up_w, v, up)
    slot = r.to(tl.int64)[None, :] * outputs + n[:, None]
    if SPLITS > 1:
        plane = rows.to(tl.int64) * outputs
        counter = arrived + tl.program_id(0)
        last, total = sum_of_splits(total, partial + slot, counter, plane, keep, SPLITS)
        # Not `keep & last`: Triton 3.9's interpreter widens a scalar bool to integers.
        keep = keep & (r[None, :] < tl.where(last, rows, 0))
    if GATED:
        total = total * tl.sigmoid(total) * up
    if HAS_BIAS:
        total += tl.load(bias + n, n < outputs, other=0).to(tl.float32)[:, None]
    tl.store(out + slot, total.to(out.dtype.element_ty), keep)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, gated: bool = False) -> Tensor:
    """See the public function."""
    problem = problem_of(weight, gated)
    try:
        return run(plan_of(x, weight, problem), problem, x, weight, bias)
    except OutOfResources as error:
        give_up(problem, len(x), error)
        return linear(x, weight, bias, gated)


def library(x: Tensor, weight: Tensor) -> bool:
    """Whether the plan for the product of these shapes, not gated, is cuBLAS."""
    return isinstance(plan_of(x, weight, problem_of(weight, gated=False)), Library)


def problem_of(weight: Tensor, gated: bool) -> Problem:
    """Returns the problem that a product with these weights is."""
    return Problem(weight.shape[0] // (2 if gated else 1), weight.shape[1], gated)


def plan_of(x: Tensor, weight: Tensor, problem: Problem) -> Plan:
    """Returns the plan for the product of these tensors."""
    rows = bucket(x.shape[0])
    sixteen_bits = x.dtype in (torch.bfloat16, torch.float16)
    if not x.numel() or rows is None or not sixteen_bits or not weight.is_contiguous():
        return Library()
    if (problem, rows) in TOO_LARGE:
        return Library()
    if not x.is_cuda:  # Triton's interpreter
        return rule(problem, rows, processors(x.device), shared_bytes(x.device))
    return choose(x.device, problem, rows)


def give_up(problem: Problem, rows: int, error: OutOfResources) -> None:
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
        launch_gemv(plan, problem, x, weight, bias, out)
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


def launch_gemv(
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
