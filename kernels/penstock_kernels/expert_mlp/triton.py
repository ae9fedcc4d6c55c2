"""Triton implementation of expert_mlp: products of tiles of rows of one expert, and their launch.

As in `linear.skinny` the product is computed transposed, weights [TILE, k] times x^T [k, ROWS], so
that the rows of the weights fill the long side of the matrix instruction however few rows x has.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_options, is_hopper, shared_bytes
from ..op import ArchKernel
from ..packed_linear.portable import block
from ..packed_linear.weight import PackedWeight
from ..route_experts.routing import Routed
from .experts import Experts, Matrices, inputs, outputs, takes_codes
from .gate import activated
from .plan import (
    BLOCK,
    HOPPER_ROWS,
    MOST_ROWS,
    VECTOR_TOKENS,
    Grouped,
    Plan,
    Problem,
    Product,
    Vectors,
    plan,
    tiles_of,
)
from .round_rows import takes_float8
from .sort import Side, Tiled, sort_choices
from .vectors import multiply_vectors

# Tiles of rows whose programs run side by side, output tile after output tile. Those of one expert
# follow each other, so its weights are read from memory once while they are in the L2 cache.
GROUP = tl.constexpr(8)
HOPPER = ArchKernel(f"{__package__}.hopper", is_hopper)
HOPPER_FLOAT8 = ArchKernel(f"{__package__}.hopper_float8", is_hopper)
HOPPER_MANY = ArchKernel(f"{__package__}.hopper_many", is_hopper)
HOPPER_MANY_CODES = ArchKernel(f"{__package__}.hopper_many_codes", is_hopper)
HOPPER_VECTORS = ArchKernel(f"{__package__}.hopper_vectors", is_hopper)
OF_CODES = HOPPER_FLOAT8, HOPPER_MANY_CODES, HOPPER  # each takes what those before it do not
COLUMNS = 1024  # of a program that adds or gates rows


@triton.jit
def _loaded(places, live, EVEN: tl.constexpr):
    """What `places` hold; EVEN: all of them are live."""
    if EVEN:
        return tl.load(places)
    return tl.load(places, live, other=0)


@triton.jit
def _weights(
    weight,
    scales,
    zeros,
    tile,
    at,
    sizes,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    EVEN: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Weights [TILE, DEPTH] of outputs tile * TILE and inputs `at` on; KIND "": not packed."""
    if KIND == "":
        outputs, inputs, _ = sizes
        # Outputs beyond the end repeat the last one: no mask on the loads.
        n = tl.minimum(tile * TILE + tl.arange(0, TILE), outputs - 1)
        k = at + tl.arange(0, DEPTH)
        places = weight + n.to(tl.int64)[:, None] * inputs + k[None, :]
        w = _loaded(places, (k < inputs)[None, :], EVEN)
    else:
        w = block(weight, scales, zeros, tile, at, sizes, KIND, BITS, ZERO, HAS_ZEROS)
    return w


@triton.jit(do_not_specialize=["most"])
def product(
    x,
    weight,
    scales,
    zeros,
    bias,
    out,
    order,
    tiles,
    choice_weights,
    x_stride,
    weight_stride,
    scale_stride,
    most,
    outputs,
    inputs,
    group,
    TOP_K: tl.constexpr,
    FIRST: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One product of each tile of rows, as `sort.place_chunk` lists them.

    FIRST, rows of x are those of the choices' tokens, and rows of out are in the order of places,
    activated unless ACTIVATION is ""; GATED, `outputs` are those of a half. Otherwise rows of x are
    in the order of places, and rows of out are in the order of choices, times their weights.
    """
    tile = tl.program_id(0) // GROUP
    at_tile = tl.program_id(1) * GROUP + tl.program_id(0) % GROUP
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if at_tile >= tl.load(tiles + 3 * most):
        return
    expert = tl.load(tiles + at_tile).to(tl.int64)
    begin, end = tl.load(tiles + most + at_tile), tl.load(tiles + 2 * most + at_tile)
    place = begin + tl.arange(0, ROWS)
    # Rows beyond the end repeat the last one.
    row = tl.minimum(place, end - 1)
    choice = tl.load(order + row)
    if FIRST:
        row = choice // TOP_K
    weight += expert * weight_stride
    scales += expert * scale_stride
    zeros += expert * scale_stride
    n, k = tile * TILE + tl.arange(0, TILE), tl.arange(0, DEPTH)
    x_at = x + row.to(tl.int64)[None, :] * x_stride + k[:, None]
    # Packed, a weight's ups are tiles further on; otherwise they are a matrix of their own.
    sizes = (outputs * (1 + GATED) if KIND != "" else outputs, inputs, group)
    up_tile = tile + (outputs // TILE if KIND != "" else 0)
    up_weight = weight + (0 if KIND != "" else outputs.to(tl.int64) * inputs)
    total = tl.zeros([TILE, ROWS], tl.float32)
    up = tl.zeros([TILE, ROWS], tl.float32)
    for at in tl.range(0, inputs, DEPTH, num_stages=STAGES):
        v = _loaded(x_at + at, (at + k < inputs)[:, None], EVEN)
        w = _weights(
            weight, scales, zeros, tile, at, sizes, KIND, BITS, ZERO, HAS_ZEROS, EVEN, TILE, DEPTH
        )
        total = tl.dot(w.to(v.dtype), v, total, input_precision="ieee")
        if GATED:
            w = _weights(
                up_weight,
                scales,
                zeros,
                up_tile,
                at,
                sizes,
                KIND,
                BITS,
                ZERO,
                HAS_ZEROS,
                EVEN,
                TILE,
                DEPTH,
            )
            up = tl.dot(w.to(v.dtype), v, up, input_precision="ieee")
    if HAS_BIAS:
        at_bias = bias + expert * (outputs * (1 + GATED)) + n
        total += tl.load(at_bias, n < outputs, other=0).to(tl.float32)[:, None]
        if GATED:
            up += tl.load(at_bias + outputs, n < outputs, other=0).to(tl.float32)[:, None]
    if ACTIVATION != "":
        total = activated(total, up, ACTIVATION)
    if not FIRST:
        total *= tl.load(choice_weights + choice).to(tl.float32)[None, :]
    target = (place if FIRST else choice).to(tl.int64)
    keep = (n < outputs)[:, None] & (place < end)[None, :]
    out_at = out + target[None, :] * outputs + n[:, None]
    tl.store(out_at, total.to(out.dtype.element_ty), keep)


@triton.jit
def gate_rows(both, out, inner, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """out [choices, inner]: gates and ups of `both` [choices, 2 inner], multiplied."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    at = both + row * 2 * inner + n
    gate = tl.load(at, n < inner, other=0).to(tl.float32)
    up = tl.load(at + inner, n < inner, other=0).to(tl.float32)
    value = activated(gate, up, ACTIVATION).to(out.dtype.element_ty)
    tl.store(out + row * inner + n, value, n < inner)


@triton.jit
def add_choices(
    rows,
    ids,
    out,
    first,
    hidden,
    TOP_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out [tokens, hidden]: sums of the rows of a token's choices, where their experts are here."""
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros([BLOCK], tl.float32)
    for turn in tl.static_range(TOP_K):
        choice = token * TOP_K + turn
        expert = tl.load(ids + choice) - first
        # Not `here & ...`: Triton 3.9's interpreter widens a scalar bool to integers.
        live = n < tl.where((expert >= 0) & (expert < EXPERTS), hidden, 0)
        total += tl.load(rows + choice * hidden + n, live, other=0).to(tl.float32)
    tl.store(out + token * hidden + n, total.to(out.dtype.element_ty), n < hidden)


def expert_mlp(x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    """See the public function."""
    if not len(x):
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    chosen = plan(problem_of(x, routed, experts), shared_bytes(x.device))
    return run(chosen, x, routed, experts)


def problem_of(x: Tensor, routed: Routed, experts: Experts) -> Problem:
    """What the plan is chosen for."""
    tokens, hidden = x.shape
    return Problem(
        tokens=tokens,
        top_k=routed.ids.shape[1],
        experts=experts.count + experts.elsewhere,
        hidden=hidden,
        inner=experts.inner,
        bits=8 * x.itemsize,
        packed=not (isinstance(experts.gate_up, Tensor) and isinstance(experts.down, Tensor)),
        sides=experts.sides,
        high=_high(x, experts),
    )


def run(plan: Plan, x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    """Computes the experts with a given plan."""
    routed = Routed(routed.ids.contiguous(), routed.weights.contiguous())
    if isinstance(plan, Vectors):
        return multiply_vectors(plan, x, routed, experts)
    if len(x) <= VECTOR_TOKENS and _packed(experts):
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if HOPPER_VECTORS.launch(x.device, x, routed, experts, out):
            return out
    return _grouped(plan, x, routed, experts)


def _high(x: Tensor, experts: Experts) -> int:
    """See `Problem.high`."""
    gate_up, down = experts.gate_up, experts.down
    if isinstance(gate_up, Tensor) or isinstance(down, Tensor):
        return HOPPER_ROWS if HOPPER_MANY.available(x.device) else 0
    both = gate_up, down
    if all(takes_codes(weight, x.dtype) for weight in both):
        return HOPPER_ROWS if HOPPER_MANY_CODES.available(x.device) else 0
    float8 = all(takes_float8(weight, x.dtype) for weight in both)
    return MOST_ROWS if float8 and HOPPER_FLOAT8.available(x.device) else 0


def _packed(experts: Experts) -> bool:
    return isinstance(experts.gate_up, PackedWeight) and isinstance(experts.down, PackedWeight)


def _grouped(plan: Grouped, x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    tokens, hidden = x.shape
    top_k, inner = routed.ids.shape[1], experts.inner
    choices = tokens * top_k
    tiled = sort_choices(plan.rows, routed, experts, x if _takes_order(plan, x, experts) else None)
    # The copy engine reads whole tiles, and takes several times as long past the end of a tensor.
    rows = torch.empty((choices + plan.rows, inner), dtype=x.dtype, device=x.device)
    first, kind = Side(x, experts.gate_up, experts.gate_up_bias, rows), experts.activation.value
    packed, gated = isinstance(experts.gate_up, PackedWeight), experts.activation.gated
    if packed and gated and inner % BLOCK:  # its ups do not begin with a block
        both = torch.empty((choices, 2 * inner), dtype=x.dtype, device=x.device)
        _product(plan.gate_up, tiled, replace(first, out=both), "")
        grid = (choices, divided_up(inner, COLUMNS))
        gate_rows[grid](both, rows, inner, kind, COLUMNS, num_warps=4, **early_options(x.device))
    else:
        _product(plan.gate_up, tiled, first, kind)
    kept = torch.float32 if plan.exact else x.dtype
    summands = torch.empty((choices, hidden), dtype=kept, device=x.device)
    side = Side(rows, experts.down, experts.down_bias, summands)
    _product(plan.down, tiled, side, "", routed.weights)
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    add_choices[(tokens, divided_up(hidden, COLUMNS))](
        summands,
        routed.ids,
        out,
        experts.first,
        hidden,
        TOP_K=top_k,
        EXPERTS=experts.count,
        BLOCK=COLUMNS,
        num_warps=4,
        **early_options(x.device),
    )
    return out


def _takes_order(plan: Grouped, x: Tensor, experts: Experts) -> bool:
    """Whether the first product takes rows of x in the order of places, with 16 bits."""
    gate_up = experts.gate_up
    if isinstance(gate_up, Tensor):
        return plan.rows == HOPPER_ROWS and HOPPER_MANY.applies(x.device)
    float8 = plan.rows == MOST_ROWS and takes_float8(gate_up, x.dtype)
    return HOPPER.applies(x.device) and not float8


def _product(
    plan: Product,
    tiled: Tiled,
    side: Side,
    activation: str,
    choice_weights: Tensor | None = None,
) -> None:
    """Launches the second product if choices have weights, otherwise the first; `activation` "":
    of gates and ups as they are."""
    x, weight, bias, out = side.x, side.weight, side.bias, side.out
    kernels = OF_CODES if isinstance(weight, PackedWeight) else (HOPPER_MANY,)
    arguments = tiled, side, activation, choice_weights
    if any(kernel.launch(x.device, *arguments) for kernel in kernels):
        return
    grid = tiles_of(out.shape[1], plan) * GROUP.value, divided_up(tiled.most, GROUP.value)
    product[grid](
        x,
        *_tensors(weight),
        x if bias is None else bias,
        out,
        tiled.order,
        tiled.tiles,
        x if choice_weights is None else choice_weights,
        x.stride(0),
        *_strides(weight),
        tiled.most,
        out.shape[1],
        inputs(weight),
        1 if isinstance(weight, Tensor) else weight.group,
        TOP_K=tiled.top_k,
        FIRST=choice_weights is None,
        GATED=outputs(weight) != out.shape[1],
        ACTIVATION=activation,
        HAS_BIAS=bias is not None,
        EVEN=inputs(weight) % plan.depth == 0,
        ROWS=tiled.rows,
        TILE=plan.tile,
        DEPTH=plan.depth,
        STAGES=plan.stages,
        num_warps=plan.warps,
        **_kind(weight),
        **early_options(x.device),
    )


def _tensors(weight: Matrices) -> tuple[Tensor, Tensor, Tensor]:
    if isinstance(weight, Tensor):
        return weight, weight, weight
    return weight.words, weight.scales, weight.scales if weight.zeros is None else weight.zeros


def _strides(weight: Matrices) -> tuple[int, int]:
    """Elements from an expert's weights, and scales, to the next one's."""
    if isinstance(weight, Tensor):
        return weight.stride(0), 0
    return weight.words.stride(0), weight.scales.stride(0)


def _kind(weight: Matrices) -> dict[str, Any]:
    if isinstance(weight, Tensor):
        return {"KIND": "", "BITS": 0, "ZERO": 0, "HAS_ZEROS": False}
    kind = weight.kind
    return {
        "KIND": kind.value,
        "BITS": kind.bits,
        "ZERO": kind.zero,
        "HAS_ZEROS": weight.zeros is not None,
    }
