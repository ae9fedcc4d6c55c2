"""Triton kernel of norm_route for few rows: norm, logits and choice in one launch.

Each program normalises its row itself and multiplies it by some rows of the weights; the program of
a row that comes last chooses. With one row of 2,048 and 128 experts this replaces three launches,
of the norm, of the product and of the choice.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import arrivals, divided_up, early_launch, power_of_two
from ..linear.launch import multiply
from ..linear.plan import COUNTERS
from ..rms_norm import NormInput
from ..route_experts.reference import SMALLEST_SUM
from ..route_experts.routing import GroupScore, Routing
from ..route_experts.triton import choice_keys, route_experts, scores_of

LEAST_SUM = tl.constexpr(SMALLEST_SUM)
ROWS = 16  # up to which programs read the weights again for each row
MOST_SIDE = 128  # experts whose ranks a program finds by comparing each with each
PROGRAMS = 64  # of a row, about
SMALLEST = tl.constexpr(-(1 << 31))


@triton.jit
def _ranks(keys, exists):
    """How many of keys [SIDE] come before each: larger ones, and equal ones of lower places.

    As integers keys are in a total order, NaN included: ranks are always a permutation.
    """
    bits = tl.where(keys == 0, 0.0, keys).to(tl.int32, bitcast=True)
    order = tl.where(exists, bits ^ ((bits >> 31) & 0x7FFFFFFF), SMALLEST)
    at = tl.arange(0, keys.shape[0])
    mine, other = order[:, None], order[None, :]
    before = (other > mine) | ((other == mine) & (at[None, :] < at[:, None]))
    return tl.sum(before.to(tl.int32), 1)


@triton.jit
def _choose(
    logits,
    correction,
    ids,
    weights,
    scale,
    TOP_K: tl.constexpr,
    SCORE: tl.constexpr,
    AFTER: tl.constexpr,
    RENORMALISE: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    KEPT: tl.constexpr,
    TOP2: tl.constexpr,
    GROUP_SIDE: tl.constexpr,
    EXPERT_SIDE: tl.constexpr,
):
    """Writes ids and weights of a row, of logits that other programs wrote."""
    group, place = tl.arange(0, GROUP_SIDE)[:, None], tl.arange(0, EXPERT_SIDE)[None, :]
    expert = group * PER_GROUP + place
    exists = (group < GROUPS) & (place < PER_GROUP)
    row = tl.load(logits + expert, exists, other=-float("inf"), cache_modifier=".cg")
    scores, keys = choice_keys(
        row.to(tl.float32),
        correction,
        expert,
        exists,
        SCORE,
        AFTER,
        HAS_CORRECTION,
        GROUPS,
        KEPT,
        TOP2,
    )
    side: tl.constexpr = GROUP_SIDE * EXPERT_SIDE
    scores, expert = scores.reshape([side]), expert.reshape([side])
    rank = _ranks(keys.reshape([side]), exists.reshape([side]))
    chosen = rank < TOP_K
    if AFTER:
        scores = scores_of(tl.where(chosen, scores, -float("inf")), SCORE)
    if RENORMALISE:
        scores = scores / (tl.sum(tl.where(chosen, scores, 0.0)) + LEAST_SUM)
    tl.store(ids + rank, expert, chosen)
    tl.store(weights + rank, scores * scale, chosen)


@triton.jit
def _normed_row(
    x,
    residual,
    norm_scale,
    normed,
    total,
    columns,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The normalised row [DEPTH], rounded; the row's first program stores it, and the sum."""
    k = tl.arange(0, DEPTH)
    inside = k < columns
    keep = k < tl.where(tl.program_id(0) == 0, columns, 0)
    row = tl.load(x + k, inside, other=0)
    if HAS_RESIDUAL:
        addend = tl.load(residual + k, inside, other=0).to(tl.float32)
        row = (row.to(tl.float32) + addend).to(row.dtype)
        tl.store(total + k, row, keep)
    wide = row.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide) / columns + eps)
    row = (wide * tl.load(norm_scale + k, inside, other=0).to(tl.float32)).to(row.dtype)
    tl.store(normed + k, row, keep)
    return row


@triton.jit
def _norm_route(
    x,
    residual,
    norm_scale,
    weight,
    bias,
    correction,
    normed,
    total,
    logits,
    arrived,
    ids,
    weights,
    x_stride,
    residual_stride,
    columns,
    eps,
    scale,
    EXPERTS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TOP_K: tl.constexpr,
    SCORE: tl.constexpr,
    AFTER: tl.constexpr,
    RENORMALISE: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    KEPT: tl.constexpr,
    TOP2: tl.constexpr,
    GROUP_SIDE: tl.constexpr,
    EXPERT_SIDE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Logits [T, EXPERTS] of TILE experts; the last program of a row chooses its experts."""
    row = tl.program_id(1).to(tl.int64)
    n, k = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, DEPTH)
    places = weight + n[:, None] * columns + k[None, :]
    w = tl.load(places, (n < EXPERTS)[:, None] & (k < columns)[None, :], other=0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    z = _normed_row(
        x + row * x_stride,
        residual + row * residual_stride,
        norm_scale,
        normed + row * columns,
        total + row * columns,
        columns,
        eps,
        HAS_RESIDUAL,
        DEPTH,
    )
    product = tl.sum(w.to(tl.float32) * z.to(tl.float32)[None, :], 1)
    if HAS_BIAS:
        product += tl.load(bias + n, n < EXPERTS, other=0).to(tl.float32)
    tl.store(logits + row * EXPERTS + n, product.to(logits.dtype.element_ty), n < EXPERTS)
    tl.debug_barrier()
    last = tl.atomic_add(arrived + row, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if last:
        _choose(
            logits + row * EXPERTS,
            correction,
            ids + row * TOP_K,
            weights + row * TOP_K,
            scale,
            TOP_K,
            SCORE,
            AFTER,
            RENORMALISE,
            HAS_CORRECTION,
            GROUPS,
            PER_GROUP,
            KEPT,
            TOP2,
            GROUP_SIDE,
            EXPERT_SIDE,
        )
        tl.store(arrived + row, 0)


def norm_route(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    correction: Tensor | None,
    routing: Routing,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See the public function."""
    rows, experts = len(x), len(weight)
    groups = routing.groups if routing.kept_groups < routing.groups else 1
    side = power_of_two(groups) * power_of_two(experts // groups)
    if not 0 < rows <= ROWS or side > MOST_SIDE or x.dtype == torch.float64:
        normed, total = NormInput(x, residual, scale, eps).normed()
        logits = multiply(normed.to(weight.dtype), weight, bias, gated=False)
        return normed, total, *route_experts(logits, correction, routing)
    return _launch(NormInput(x, residual, scale, eps), (weight, bias, correction), routing, groups)


def _launch(
    norm_input: NormInput,
    router: tuple[Tensor, Tensor | None, Tensor | None],
    routing: Routing,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, residual, scale, eps = norm_input
    weight, bias, correction = router
    (rows, columns), experts, device = x.shape, len(weight), x.device
    normed = torch.empty((rows, columns), dtype=x.dtype, device=device)
    total = x if residual is None else torch.empty_like(normed)
    logits = torch.empty((rows, experts), dtype=weight.dtype, device=device)
    ids = torch.empty((rows, routing.top_k), dtype=torch.int32, device=device)
    weights = torch.empty(ids.shape, dtype=torch.float32, device=device)
    addend = x if residual is None else residual
    early, tile = early_launch(device), power_of_two(divided_up(experts, PROGRAMS))
    _norm_route[(divided_up(experts, tile), rows)](
        x,
        addend,
        scale,
        weight,
        weight if bias is None else bias,
        weight if correction is None else correction,
        normed,
        total,
        logits,
        arrivals(device, COUNTERS),
        ids,
        weights,
        x.stride(0),
        addend.stride(0),
        columns,
        eps,
        routing.scale,
        EXPERTS=experts,
        TILE=tile,
        DEPTH=power_of_two(columns),
        HAS_RESIDUAL=residual is not None,
        HAS_BIAS=bias is not None,
        TOP_K=routing.top_k,
        SCORE=routing.score.value,
        AFTER=routing.score_after_choice,
        RENORMALISE=routing.renormalise,
        HAS_CORRECTION=correction is not None,
        GROUPS=groups,
        PER_GROUP=experts // groups,
        KEPT=min(routing.kept_groups, groups),
        TOP2=routing.group_score is GroupScore.TOP2_SUM,
        GROUP_SIDE=power_of_two(groups),
        EXPERT_SIDE=power_of_two(experts // groups),
        EARLY=early,
        num_warps=4 if columns <= 4096 else 8,
        launch_pdl=early,
    )
    return normed, total, ids, weights
