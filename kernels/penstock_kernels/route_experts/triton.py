"""Triton kernel of route_experts: one warp per token, which holds all of its logits."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import early_launch, power_of_two
from .reference import SMALLEST_SUM
from .routing import GroupScore, Routed, Routing

SOFTMAX, SIGMOID = tl.constexpr("softmax"), tl.constexpr("sigmoid")
LEAST_SUM = tl.constexpr(SMALLEST_SUM)


@triton.jit
def _scores(logits, SCORE: tl.constexpr):
    """What logits become; those of experts that do not exist are minus infinity."""
    if SCORE == SOFTMAX:
        powers = tl.exp(logits - tl.max(logits))
        return powers / tl.sum(powers)
    if SCORE == SIGMOID:
        return tl.sigmoid(logits)
    # log(1 + exp(z)), of small exp(z) by its series.
    power = tl.exp(-tl.abs(logits))
    tail = tl.where(power < 1e-3, power * (1.0 - power * (0.5 - power / 3)), tl.log(1.0 + power))
    return tl.sqrt(tl.maximum(logits, 0.0) + tail)


@triton.jit
def _kept(keys, KEPT: tl.constexpr, TOP2: tl.constexpr):
    """Whether each group [GROUPS, 1] of keys [GROUPS, PER_GROUP] is kept."""
    place = tl.arange(0, keys.shape[1])[None, :]
    best = tl.max(keys, 1)
    if TOP2:
        first = tl.argmax(keys, 1, tie_break_left=True)
        best += tl.max(tl.where(place == first[:, None], -float("inf"), keys), 1)
    group = tl.arange(0, keys.shape[0])
    kept = tl.zeros_like(group)
    for _ in tl.static_range(KEPT):
        chosen = group == tl.argmax(best, 0, tie_break_left=True)
        kept = tl.where(chosen, 1, kept)
        best = tl.where(chosen, -float("inf"), best)
    return kept[:, None] == 1


@triton.jit
def _route_row(
    logits,
    bias,
    ids,
    weights,
    stride,
    scale,
    TOP_K: tl.constexpr,
    SCORE: tl.constexpr,
    AFTER: tl.constexpr,
    RENORMALISE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    KEPT: tl.constexpr,
    TOP2: tl.constexpr,
    GROUP_SIDE: tl.constexpr,
    EXPERT_SIDE: tl.constexpr,
    CHOICES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Experts and weights of a token. Sides and CHOICES are powers of 2, not below their counts."""
    row = tl.program_id(0).to(tl.int64)
    group, place = tl.arange(0, GROUP_SIDE)[:, None], tl.arange(0, EXPERT_SIDE)[None, :]
    expert = group * PER_GROUP + place
    exists = (group < GROUPS) & (place < PER_GROUP)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row_logits = tl.load(logits + row * stride + expert, exists, other=-float("inf"))
    scores = row_logits.to(tl.float32)
    if not AFTER:
        scores = _scores(scores, SCORE)
    keys = scores
    if HAS_BIAS:
        keys += tl.load(bias + expert, exists, other=0).to(tl.float32)
    keys = tl.where(exists, keys, -float("inf"))
    if KEPT < GROUPS:
        keys = tl.where(_kept(keys, KEPT, TOP2), keys, -float("inf"))

    side: tl.constexpr = GROUP_SIDE * EXPERT_SIDE
    keys, scores, expert = keys.reshape([side]), scores.reshape([side]), expert.reshape([side])
    at, choice = tl.arange(0, side), tl.arange(0, CHOICES)
    chosen_ids = tl.zeros([CHOICES], tl.int32)
    chosen = tl.full([CHOICES], -float("inf") if AFTER else 0.0, tl.float32)
    for turn in tl.static_range(TOP_K):
        best = at == tl.argmax(keys, 0, tie_break_left=True)
        keys = tl.where(best, -float("inf"), keys)
        chosen_ids = tl.where(choice == turn, tl.sum(tl.where(best, expert, 0)), chosen_ids)
        chosen = tl.where(choice == turn, tl.sum(tl.where(best, scores, 0.0)), chosen)
    if AFTER:
        chosen = _scores(chosen, SCORE)
    if RENORMALISE:
        chosen = chosen / (tl.sum(chosen) + LEAST_SUM)
    places = row * TOP_K + choice
    tl.store(ids + places, chosen_ids, choice < TOP_K)
    tl.store(weights + places, chosen * scale, choice < TOP_K)


def route_experts(logits: Tensor, bias: Tensor | None, routing: Routing) -> Routed:
    """See the public function."""
    tokens, experts = logits.shape
    shape, device = (tokens, routing.top_k), logits.device
    ids = torch.empty(shape, dtype=torch.int32, device=device)
    weights = torch.empty(shape, dtype=torch.float32, device=device)
    groups = routing.groups if routing.kept_groups < routing.groups else 1
    per_group = experts // groups
    early = early_launch(device)
    if tokens:
        _route_row[(tokens,)](
            logits,
            logits if bias is None else bias,
            ids,
            weights,
            logits.stride(0),
            routing.scale,
            TOP_K=routing.top_k,
            SCORE=routing.score.value,
            AFTER=routing.score_after_choice,
            RENORMALISE=routing.renormalise,
            HAS_BIAS=bias is not None,
            GROUPS=groups,
            PER_GROUP=per_group,
            KEPT=min(routing.kept_groups, groups),
            TOP2=routing.group_score is GroupScore.TOP2_SUM,
            GROUP_SIDE=power_of_two(groups),
            EXPERT_SIDE=power_of_two(per_group),
            CHOICES=power_of_two(routing.top_k),
            EARLY=early,
            num_warps=1,
            launch_pdl=early,
        )
    return Routed(ids, weights)
