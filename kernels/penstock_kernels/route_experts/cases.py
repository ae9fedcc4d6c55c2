"""Cases of route_experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..case import TOLERANCE, Case, Size
from .routing import GroupScore, Routing, Score


@dataclass(frozen=True)
class Problem:
    """Shapes of a case."""

    tokens: int
    experts: int
    routing: Routing
    bias: bool = False
    ties: bool = False
    """Whether logits are small integers, so that many are equal."""


def _case(size: Size, name: str, problem: Problem) -> Case:
    def make(device: torch.device) -> dict[str, Any]:
        # Rows of logits may be strided, as slices of fused outputs are.
        logits = 2 * torch.randn(problem.tokens, problem.experts + 3, device=device)
        if problem.ties:
            logits = logits.round_()
        bias = torch.randn(problem.experts, device=device) / 4 if problem.bias else None
        if bias is not None and problem.ties:
            bias = bias.round_()
        return {"logits": logits[:, : problem.experts], "bias": bias, "routing": problem.routing}

    routing = problem.routing
    name = f"{name}-{problem.tokens}x{problem.experts}-top{routing.top_k}"
    name += "-ties" if problem.ties else ""
    moved = 4 * problem.tokens * (problem.experts + 2 * routing.top_k)
    return Case(name, size, make, 4 * TOLERANCE[torch.float32], bytes_moved=moved)


QWEN3 = Problem(5, 128, Routing(8, renormalise=True))
OLMOE = Problem(3, 64, Routing(8))
MIXTRAL = Problem(7, 8, Routing(2, renormalise=True))
GPT_OSS = Problem(4, 32, Routing(4, score_after_choice=True))
DEEPSEEK_V2 = Problem(3, 160, Routing(6, scale=16.0, groups=8, kept_groups=3))
DEEPSEEK_V3 = Problem(
    3,
    256,
    Routing(
        8,
        Score.SIGMOID,
        renormalise=True,
        scale=2.5,
        groups=8,
        kept_groups=4,
        group_score=GroupScore.TOP2_SUM,
    ),
    bias=True,
)
GLM = Problem(2, 96, Routing(8, Score.SIGMOID, renormalise=True), bias=True)
DEEPSEEK_V4 = Problem(
    3, 384, Routing(6, Score.SQRT_SOFTPLUS, renormalise=True, scale=1.5), bias=True
)
# No power of two of experts, groups or choices.
ODD = Problem(
    3,
    45,
    Routing(7, Score.SIGMOID, groups=5, kept_groups=3, group_score=GroupScore.TOP2_SUM),
    bias=True,
)
BIASED_LOGITS = Problem(3, 20, Routing(3, score_after_choice=True, scale=0.5), bias=True)
KOLIBRI = Problem(
    3, 384, Routing(6, Score.SIGMOID, score_after_choice=True, renormalise=True), bias=True
)
LARGEST = Problem(2, 1024, Routing(10, renormalise=True))
LONGCAT = Problem(2, 768, Routing(12, scale=6.0), bias=True)
ALL = Problem(2, 6, Routing(6))

FAMILIES = {
    "qwen3": QWEN3,
    "olmoe": OLMOE,
    "mixtral": MIXTRAL,
    "gpt-oss": GPT_OSS,
    "deepseek-v2": DEEPSEEK_V2,
    "deepseek-v3": DEEPSEEK_V3,
    "glm": GLM,
    "deepseek-v4": DEEPSEEK_V4,
    "odd": ODD,
    "biased-logits": BIASED_LOGITS,
    "kolibri": KOLIBRI,
    "largest": LARGEST,
    "longcat": LONGCAT,
    "all": ALL,
}

CASES = [
    *(_case(Size.SMALL, name, problem) for name, problem in FAMILIES.items()),
    *(
        _case(Size.SMALL, name, replace(problem, ties=True))
        for name, problem in FAMILIES.items()
        if problem.routing.group_score is GroupScore.MAX
    ),
    _case(Size.SMALL, "none", replace(QWEN3, tokens=0)),
    *(_case(Size.FULL, name, replace(one, tokens=301)) for name, one in FAMILIES.items()),
    *(
        _case(Size.BENCH, name, replace(FAMILIES[name], tokens=tokens))
        for name in ("qwen3", "gpt-oss", "deepseek-v3")
        for tokens in (1, 64, 4096)
    ),
]
