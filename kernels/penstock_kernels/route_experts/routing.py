"""How a router chooses experts: what families of mixtures differ in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from torch import Tensor


class Score(Enum):
    """What a logit becomes before it weights an expert."""

    SOFTMAX = "softmax"
    """exp(z) over the sum of the row's. Mixtral, Qwen, OLMoE, DeepSeek-V2."""
    SIGMOID = "sigmoid"
    """1 / (1 + exp(-z)). DeepSeek-V3, GLM-4.5, MiniMax."""
    SQRT_SOFTPLUS = "sqrt_softplus"
    """sqrt(log(1 + exp(z))). DeepSeek-V4."""


class GroupScore(Enum):
    """What groups of experts compete with."""

    MAX = "max"
    """Their best expert's score. DeepSeek-V2."""
    TOP2_SUM = "top2_sum"
    """The sum of their two best. DeepSeek-V3."""


@dataclass(frozen=True)
class Routing:
    """The rule by which a layer chooses experts. ValueError if fields contradict each other."""

    top_k: int
    """Experts of a token, from 1 on."""
    score: Score = Score.SOFTMAX
    score_after_choice: bool = False
    """Experts are chosen by logits; scores are of the chosen alone. gpt-oss, Kolibri."""
    renormalise: bool = False
    """Whether a token's weights are divided by their sum."""
    scale: float = 1.0
    """Factor of all weights, after that."""
    groups: int = 1
    """Groups of neighbouring experts, equally large; 1: experts compete without groups."""
    kept_groups: int = 1
    """Groups whose experts may be chosen: those with the best group scores."""
    group_score: GroupScore = GroupScore.MAX

    def __post_init__(self) -> None:
        """Refuses what no router can mean."""
        if self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; expected 1 or more")
        if not 1 <= self.kept_groups <= self.groups:
            raise ValueError(f"kept_groups is {self.kept_groups}; expected 1 to {self.groups}")
        if self.score_after_choice and self.groups > 1:
            raise ValueError(f"score_after_choice with {self.groups} groups; expected none")


class Routed(NamedTuple):
    """The experts of each token, the best first."""

    ids: Tensor
    """[T, top_k] int32."""
    weights: Tensor
    """[T, top_k] float32, of float64 logits float64."""
