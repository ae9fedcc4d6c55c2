"""Triton implementation of expert_mlp: launches the kernels of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..device import divided_up, early_launch, power_of_two, shared_bytes
from ..route_experts.routing import Routed
from .experts import Experts, Matrices, inputs, outputs
from .grouped import GROUP, add_choices, gate_rows, product
from .plan import (
    BLOCK,
    CHUNK,
    FEWEST_CHUNK,
    LARGE_CHUNK,
    LARGE_CHUNK_CHOICES,
    READ_COUNTS,
    Grouped,
    Plan,
    Problem,
    Product,
    Vectors,
    most_tiles,
    plan,
    tiles_of,
)
from .sort import count_chunk, place_chunk
from .vectors import down_vectors, gate_up_vector

COLUMNS = 1024  # of a program that adds or gates rows


def expert_mlp(x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    """See the public function."""
    tokens, hidden = x.shape
    if not tokens:
        return torch.empty((0, hidden), dtype=x.dtype, device=x.device)
    problem = Problem(
        tokens=tokens,
        top_k=routed.ids.shape[1],
        experts=experts.count,
        hidden=hidden,
        inner=experts.inner,
        bits=8 * x.itemsize,
        packed=not (isinstance(experts.gate_up, Tensor) and isinstance(experts.down, Tensor)),
    )
    return run(plan(problem, shared_bytes(x.device)), x, routed, experts)


def run(plan: Plan, x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    """Computes the experts with a given plan."""
    routed = Routed(routed.ids.contiguous(), routed.weights.contiguous())
    if isinstance(plan, Vectors):
        return _vectors(plan, x, routed, experts)
    return _grouped(plan, x, routed, experts)


def _vectors(plan: Vectors, x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    gate_up, down = experts.gate_up, experts.down
    assert isinstance(gate_up, Tensor) and isinstance(down, Tensor)
    tokens, hidden = x.shape
    top_k, inner = routed.ids.shape[1], experts.inner
    rows = torch.empty((tokens * top_k, inner), dtype=x.dtype, device=x.device)
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    common = {**_early(x.device), "TOP_K": top_k, "EXPERTS": experts.count}
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


def _grouped(plan: Grouped, x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    tokens, hidden = x.shape
    top_k, inner = routed.ids.shape[1], experts.inner
    choices = tokens * top_k
    tiled = sort_choices(plan.rows, routed, experts)
    rows = torch.empty((choices, inner), dtype=x.dtype, device=x.device)
    if isinstance(experts.gate_up, Tensor) or inner % BLOCK == 0:
        _product(plan.gate_up, tiled, Side(x, experts.gate_up, experts.gate_up_bias, rows), experts)
    else:  # a packed weight's ups do not begin with a block
        both = torch.empty((choices, 2 * inner), dtype=x.dtype, device=x.device)
        _product(plan.gate_up, tiled, Side(x, experts.gate_up, experts.gate_up_bias, both), experts)
        grid = (choices, divided_up(inner, COLUMNS))
        kind = experts.activation.value
        gate_rows[grid](both, rows, inner, kind, COLUMNS, num_warps=4, **_early(x.device))
    kept = torch.float32 if plan.exact else x.dtype
    summands = torch.empty((choices, hidden), dtype=kept, device=x.device)
    side = Side(rows, experts.down, experts.down_bias, summands)
    _product(plan.down, tiled, side, experts, routed.weights)
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
        **_early(x.device),
    )
    return out


@dataclass(frozen=True)
class Tiled:
    """Choices sorted by expert, in tiles of rows."""

    rows: int
    """Of a tile."""
    most: int
    """Tiles that there may be."""
    top_k: int
    order: Tensor
    """[choices] int32; of those of other ranks' experts nothing."""
    tiles: Tensor
    """[3 most + 1] int32: see `sort.place_chunk`."""


def sort_choices(rows: int, routed: Routed, experts: Experts) -> Tiled:
    """Launches the sort of choices by expert, in tiles of `rows`."""
    ids, count = routed.ids, routed.ids.numel()
    most = most_tiles(count, experts.count, rows)
    order = torch.empty(count, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(3 * most + 1, dtype=torch.int32, device=ids.device)
    chunk = FEWEST_CHUNK if count <= FEWEST_CHUNK else CHUNK
    if count > LARGE_CHUNK_CHOICES:
        chunk = LARGE_CHUNK
    chunks, side = divided_up(count, chunk), power_of_two(experts.count)
    common = {**_early(ids.device), "EXPERTS": experts.count, "SIDE": side, "CHUNK": chunk}
    counts = ids
    if chunks > 1:
        counts = torch.empty((chunks, side), dtype=torch.int32, device=ids.device)
        count_chunk[(chunks,)](ids, counts, count, experts.first, num_warps=4, **common)
    place_chunk[(chunks,)](
        ids,
        counts,
        order,
        tiles,
        count,
        chunks,
        most,
        experts.first,
        ROWS=rows,
        READ=max(1, READ_COUNTS // side) if chunks > 1 else 0,
        num_warps=max(4, chunk // 16),
        **common,
    )
    return Tiled(rows, most, routed.ids.shape[1], order, tiles)


@dataclass(frozen=True)
class Side:
    """Operands of one of the two products."""

    x: Tensor
    weight: Matrices
    bias: Tensor | None
    out: Tensor


def _product(
    plan: Product,
    tiled: Tiled,
    side: Side,
    experts: Experts,
    choice_weights: Tensor | None = None,
) -> None:
    """Launches the second product if choices have weights, otherwise the first."""
    x, weight, bias, out = side.x, side.weight, side.bias, side.out
    gated = outputs(weight) != out.shape[1]
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
        GATED=gated,
        ACTIVATION=experts.activation.value if gated else "",
        HAS_BIAS=bias is not None,
        EVEN=inputs(weight) % plan.depth == 0,
        ROWS=tiled.rows,
        TILE=plan.tile,
        DEPTH=plan.depth,
        STAGES=plan.stages,
        num_warps=plan.warps,
        **_kind(weight),
        **_early(x.device),
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


def _early(device: torch.device) -> dict[str, Any]:
    early = early_launch(device)
    return {"EARLY": early, "launch_pdl": early}
