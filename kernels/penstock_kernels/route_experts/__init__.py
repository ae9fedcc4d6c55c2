"""The router of a mixture of experts: which experts compute a token, with which weights."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference
from .routing import GroupScore, Routed, Routing, Score

__all__ = ["GroupScore", "Routed", "Routing", "Score", "expect_routing", "route_experts"]

_OP = Op("route_experts", reference.route_experts)

MOST_EXPERTS = 1024


def route_experts(logits: Tensor, bias: Tensor | None, routing: Routing) -> Routed:
    """Chooses `routing.top_k` experts of each token and their weights.

    Scores are the softmax, sigmoid or sqrt(softplus) of a row's logits. Experts with the largest
    score + bias are chosen, of equal ones the lowest id; with groups, among the experts of the
    groups that are kept. Weights are scores without the bias, divided by their sum if
    `renormalise`, times `scale`. With `score_after_choice` experts with the largest logit + bias
    are chosen, and weights are scores of the chosen logits.

    Args: logits [T, E] float, rows may be strided, up to 1,024 experts; bias [E] float or None.
    Returns: ids [T, top_k] int32, from the best on, and weights [T, top_k] float32.
    Precision: float32 inside. Equal rows give equal results, whatever else is in the batch.
    Bytes moved: T (E + 2 top_k) numbers of 4 bytes.
    Source: Shazeer et al., Outrageously Large Neural Networks, 2017; DeepSeek-AI, DeepSeek-V2 and
        DeepSeek-V3 technical reports, 2024 (groups; bias).
    """
    expect_rank("logits", logits, "T, E")
    expect_rows("logits", logits)
    tokens, experts = logits.shape
    expect("logits", logits, (tokens, experts), FLOATS)
    if bias is not None:
        expect("bias", bias, (experts,), FLOATS)
    expect_routing(experts, routing)
    return _OP.on(logits)(logits, bias, routing)


def expect_routing(experts: int, routing: Routing) -> None:
    """Raises ValueError unless this many experts fit the routing."""
    if experts > MOST_EXPERTS:
        raise ValueError(f"logits has {experts} experts; expected up to {MOST_EXPERTS}")
    per_group, rest = divmod(experts, routing.groups)
    if rest or (routing.group_score is GroupScore.TOP2_SUM and per_group < 2):
        raise ValueError(f"logits has {experts} experts, which {routing.groups} groups cannot hold")
    if routing.top_k > routing.kept_groups * per_group:
        raise ValueError(
            f"top_k is {routing.top_k}; expected up to {routing.kept_groups * per_group} experts"
        )
