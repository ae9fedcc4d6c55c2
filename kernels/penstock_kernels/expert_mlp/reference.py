"""Reference of expert_mlp in torch: experts in turn, each with its tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, relu, silu

from ..act_mul.reference import SLOPE
from ..route_experts.routing import Routed
from ..shared import wide
from .experts import CAP, GATE_CAP, LIMIT, SILU_LIMIT, UP_CAP, Activation, Experts, Matrices


def expert_mlp(x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    """See the public function."""
    rows = wide(x)
    total = torch.zeros_like(rows)
    ids = routed.ids.long() - experts.first
    for expert in ids.unique().tolist():
        if 0 <= expert < experts.count:
            tokens, choices = (ids == expert).nonzero(as_tuple=True)
            weights = routed.weights[tokens, choices].to(rows.dtype)
            total.index_add_(0, tokens, _one(rows[tokens], experts, expert) * weights[:, None])
    return total.to(x.dtype)


def _one(rows: Tensor, experts: Experts, expert: int) -> Tensor:
    """What one expert makes of rows [n, hidden]."""
    gate_up = _matrix(experts.gate_up, expert, rows.dtype)
    down = _matrix(experts.down, expert, rows.dtype)
    both = linear(rows, gate_up, _bias(experts.gate_up_bias, expert, rows.dtype))
    if experts.activation.gated:
        gate, up = both.chunk(2, -1)
        inner = activated(gate, up, experts.activation)
    else:
        inner = relu(both).square()
    return linear(inner, down, _bias(experts.down_bias, expert, rows.dtype))


def activated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """The product of activated gates and ups."""
    if activation is Activation.CLAMPED_SWIGLU:
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        return gate * torch.sigmoid(SLOPE * gate) * (up + 1)
    if activation is Activation.GELU_TANH:
        return gelu(gate, approximate="tanh") * up
    if activation is Activation.CAPPED_SILU:
        return silu(gate).clamp(max=CAP) * up.clamp(-CAP, CAP)
    if activation is Activation.SOFTCAPPED_SILU:
        gate_part = (gate / GATE_CAP).tanh() * GATE_CAP * torch.sigmoid(gate)
        return gate_part * (up / UP_CAP).tanh() * UP_CAP
    if activation is Activation.LIMITED_SILU:
        gate, up = gate.clamp(max=SILU_LIMIT), up.clamp(-SILU_LIMIT, SILU_LIMIT)
    return silu(gate) * up


def _matrix(matrices: Matrices, expert: int, dtype: torch.dtype) -> Tensor:
    if isinstance(matrices, Tensor):
        return matrices[expert].to(dtype)
    return matrices.of_expert(expert).matrix(dtype)


def _bias(bias: Tensor | None, expert: int, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else bias[expert].to(dtype)
