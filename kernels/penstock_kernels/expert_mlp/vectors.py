"""Triton kernels of expert_mlp for one token or two: matrices times vectors.

A choice's expert is read where its weights are, so nothing is sorted. If two tokens choose the same
expert, its weights are read twice.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_options, power_of_two
from ..route_experts.routing import Routed
from .experts import Experts
from .gate import activated
from .plan import Vectors


@triton.jit
def gate_up_vector(
    x,
    ids,
    weight,
    bias,
    out,
    x_stride,
    first,
    inner,
    hidden,
    TOP_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    SIDES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out [choices, inner]: gates and ups of each choice, multiplied. With one of SIDES, the ups
    are the `gates` here."""
    choice = tl.program_id(1)
    n, k = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, DEPTH)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.load(ids + choice) - first
    here = (expert >= 0) & (expert < EXPERTS)
    row = tl.where(here, expert, 0).to(tl.int64) * SIDES * inner + tl.minimum(n, inner - 1)
    at_gate = weight + row[:, None] * hidden + k[None, :]
    at_up = at_gate + inner.to(tl.int64) * hidden
    at_x = x + (choice // TOP_K).to(tl.int64) * x_stride + k
    gates = tl.zeros([TILE, DEPTH], tl.float32)
    ups = tl.zeros([TILE, DEPTH], tl.float32)
    # No turn where the expert is not here.
    for at in tl.range(0, tl.where(here, hidden, 0), DEPTH, num_stages=STAGES):
        live = at + k < hidden
        v = tl.load(at_x + at, live, other=0).to(tl.float32)[None, :]
        gates += tl.load(at_gate + at, live[None, :], other=0).to(tl.float32) * v
        if SIDES == 2:
            ups += tl.load(at_up + at, live[None, :], other=0).to(tl.float32) * v
    gate, up = tl.sum(gates, 1), tl.sum(ups, 1)
    if HAS_BIAS:
        gate += tl.load(bias + row).to(tl.float32)
        if SIDES == 2:
            up += tl.load(bias + inner + row).to(tl.float32)
    value = activated(gate, up, ACTIVATION).to(out.dtype.element_ty)
    tl.store(out + choice.to(tl.int64) * inner + n, value, n < inner)


@triton.jit
def down_vectors(
    rows,
    ids,
    weights,
    weight,
    bias,
    out,
    first,
    hidden,
    inner,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    EXPERTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out [tokens, hidden]: the weighted sums. CHOICES, a power of two, holds TOP_K."""
    token = tl.program_id(1)
    n, k = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, DEPTH)
    c = tl.arange(0, CHOICES)
    # What wrote the ids has ended: the kernel before this one waits for it before this one starts.
    expert = tl.load(ids + token * TOP_K + c, c < TOP_K, other=-1, cache_modifier=".cg") - first
    here = (c < TOP_K) & (expert >= 0) & (expert < EXPERTS)
    row = tl.where(here, expert, 0).to(tl.int64)[:, None] * hidden + tl.minimum(n, hidden - 1)[None]
    at_weight = weight + row * inner
    at_weight = at_weight[:, :, None] + k[None, None, :]
    # Weights of the first turn, which is multiplied last: while the kernel before still runs.
    first_live = here[:, None, None] & (k < inner)[None, None, :]
    first_weights = tl.load(at_weight, first_live, other=0)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    factor = tl.load(weights + token * TOP_K + c, here, other=0).to(tl.float32)
    choice = (token * TOP_K + c).to(tl.int64)
    at_rows = rows + choice[:, None, None] * inner + k[None, None, :]
    products = tl.zeros([CHOICES, TILE, DEPTH], tl.float32)
    for at in tl.range(DEPTH, inner, DEPTH, num_stages=STAGES):
        live = here[:, None, None] & (at + k < inner)[None, None, :]
        v = tl.load(at_rows + at, live, other=0).to(tl.float32)
        products += tl.load(at_weight + at, live, other=0).to(tl.float32) * v
    v = tl.load(at_rows, first_live, other=0).to(tl.float32)
    products += first_weights.to(tl.float32) * v
    product = tl.sum(products, 2)
    if HAS_BIAS:
        product += tl.load(bias + row, here[:, None], other=0).to(tl.float32)
    total = tl.sum(product * factor[:, None], 0)
    value = total.to(out.dtype.element_ty)
    tl.store(out + token.to(tl.int64) * hidden + n, value, n < hidden)


def multiply_vectors(plan: Vectors, x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    """The experts of one token or two."""
    gate_up, down = experts.gate_up, experts.down
    assert isinstance(gate_up, Tensor) and isinstance(down, Tensor)
    tokens, hidden = x.shape
    top_k, inner = routed.ids.shape[1], experts.inner
    rows = torch.empty((tokens * top_k, inner), dtype=x.dtype, device=x.device)
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    common = {**early_options(x.device), "TOP_K": top_k, "EXPERTS": experts.count}
    gate_up_vector[(divided_up(inner, plan.gate_up.tile), tokens * top_k)](
        x,
        routed.ids,
        gate_up,
        gate_up if experts.gate_up_bias is None else experts.gate_up_bias,
        rows,
        x.stride(0),
        experts.first,
        inner,
        hidden,
        SIDES=experts.sides,
        HAS_BIAS=experts.gate_up_bias is not None,
        ACTIVATION=experts.activation.value,
        TILE=plan.gate_up.tile,
        DEPTH=plan.gate_up.depth,
        STAGES=plan.gate_up.stages,
        num_warps=plan.gate_up.warps,
        **common,
    )
    down_vectors[(divided_up(hidden, plan.down.tile), tokens)](
        rows,
        *routed,
        down,
        down if experts.down_bias is None else experts.down_bias,
        out,
        experts.first,
        hidden,
        inner,
        CHOICES=power_of_two(top_k),
        HAS_BIAS=experts.down_bias is not None,
        TILE=plan.down.tile,
        DEPTH=plan.down.depth,
        STAGES=plan.down.stages,
        num_warps=plan.down.warps,
        **common,
    )
    return out
