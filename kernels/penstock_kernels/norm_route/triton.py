"""Triton kernel of norm_route for few rows: norm and logits in one launch, before the choice.

Each program normalises its row itself and multiplies it by some rows of the weights.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_launch, power_of_two
from ..linear.triton import linear
from ..rms_norm import NormInput
from ..route_experts.routing import Routing
from ..route_experts.triton import route_experts

ROWS = 16  # up to which programs read the weights again for each row
PROGRAMS = 64  # of a row, about


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
def _norm_logits(
    x,
    residual,
    norm_scale,
    weight,
    bias,
    normed,
    total,
    logits,
    x_stride,
    residual_stride,
    columns,
    eps,
    EXPERTS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """logits [T, EXPERTS] of TILE experts and a row."""
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
    norm_input = NormInput(x, residual, scale, eps)
    if 0 < len(x) <= ROWS and x.dtype != torch.float64:
        normed, total, logits = _launch(norm_input, weight, bias)
    else:
        normed, total = norm_input.normed()
        logits = linear(normed.to(weight.dtype), weight, bias, gated=False)
    return normed, total, *route_experts(logits, correction, routing)


def _launch(
    norm_input: NormInput, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    x, residual, scale, eps = norm_input
    (rows, columns), experts, device = x.shape, len(weight), x.device
    normed = torch.empty((rows, columns), dtype=x.dtype, device=device)
    total = x if residual is None else torch.empty_like(normed)
    logits = torch.empty((rows, experts), dtype=weight.dtype, device=device)
    addend = x if residual is None else residual
    early, tile = early_launch(device), power_of_two(divided_up(experts, PROGRAMS))
    _norm_logits[(divided_up(experts, tile), rows)](
        x,
        addend,
        scale,
        weight,
        weight if bias is None else bias,
        normed,
        total,
        logits,
        x.stride(0),
        addend.stride(0),
        columns,
        eps,
        EXPERTS=experts,
        TILE=tile,
        DEPTH=power_of_two(columns),
        HAS_RESIDUAL=residual is not None,
        HAS_BIAS=bias is not None,
        EARLY=early,
        num_warps=4 if columns <= 4096 else 8,
        launch_pdl=early,
    )
    return normed, total, logits
