"""Triton kernels of expert_mlp for one token or two: matrices times vectors, in registers.

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
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out [choices, inner]: gates and ups of each choice, multiplied. DEPTH holds `hidden`."""
    choice = tl.program_id(1)
    n, k = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, DEPTH)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.load(ids + choice) - first
    here = (expert >= 0) & (expert < EXPERTS)
    row = tl.where(here, expert, 0).to(tl.int64) * 2 * inner + n
    # Masks instead of a branch: the compiler would issue the loads one by one.
    live = (n < tl.where(here, inner, 0))[:, None] & (k < hidden)[None, :]
    at = weight + row[:, None] * hidden + k[None, :]
    gates = tl.load(at, live, other=0)
    ups = tl.load(at + inner.to(tl.int64) * hidden, live, other=0)
    token = (choice // TOP_K).to(tl.int64)
    v = tl.load(x + token * x_stride + k, k < hidden, other=0).to(tl.float32)[None, :]
    gate, up = tl.sum(gates.to(tl.float32) * v, 1), tl.sum(ups.to(tl.float32) * v, 1)
    if HAS_BIAS:
        gate += tl.load(bias + row, n < inner, other=0).to(tl.float32)
        up += tl.load(bias + inner + row, n < inner, other=0).to(tl.float32)
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
    EARLY: tl.constexpr,
):
    """out [tokens, hidden]: the weighted sums. CHOICES holds TOP_K, DEPTH holds `inner`."""
    token = tl.program_id(1)
    n, k = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, DEPTH)
    c = tl.arange(0, CHOICES)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.load(ids + token * TOP_K + c, c < TOP_K, other=-1) - first
    here = (c < TOP_K) & (expert >= 0) & (expert < EXPERTS)
    factor = tl.load(weights + token * TOP_K + c, here, other=0).to(tl.float32)
    row = tl.where(here, expert, 0).to(tl.int64)[:, None] * hidden + n[None, :]
    live = here[:, None] & (n < hidden)[None, :]
    inside = (k < inner)[None, None, :]
    w = tl.load(weight + row[:, :, None] * inner + k[None, None, :], live[:, :, None] & inside, 0)
    choice = (token * TOP_K + c).to(tl.int64)
    v = tl.load(
        rows + choice[:, None, None] * inner + k[None, None, :], here[:, None, None] & inside, 0
    )
    product = tl.sum(w.to(tl.float32) * v.to(tl.float32), 2)
    if HAS_BIAS:
        product += tl.load(bias + row, live, other=0).to(tl.float32)
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
    gate_up_vector[(divided_up(inner, plan.gate_tile), tokens * top_k)](
        x,
        routed.ids,
        gate_up,
        gate_up if experts.gate_up_bias is None else experts.gate_up_bias,
        rows,
        x.stride(0),
        experts.first,
        inner,
        hidden,
        HAS_BIAS=experts.gate_up_bias is not None,
        ACTIVATION=experts.activation.value,
        TILE=plan.gate_tile,
        DEPTH=power_of_two(hidden),
        num_warps=8,
        **common,
    )
    down_vectors[(divided_up(hidden, plan.down_tile), tokens)](
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
        TILE=plan.down_tile,
        DEPTH=power_of_two(inner),
        num_warps=8,
        **common,
    )
    return out
