"""Triton kernel of up to 256 rows times a matrix, on the matrix units; few are bound by reading it.

The product is computed transposed, weights [TILE, k] times x^T [k, ROWS], so that the many weight
rows, not the few rows of x, fill the long side of the matrix instruction. Programs that split the
inputs of a tile leave partial sums in memory; the last of them to arrive adds all of them up, in
order of the splits, so who is last changes nothing.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _weights(at, k, end, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(at)
    return tl.load(at, (k < end)[None, :], other=0)


@triton.jit
def sum_of_splits(mine, partial, arrived, plane, keep, SPLITS: tl.constexpr):
    """(whether this program came last, and then the sum of all splits).

    `partial` points at split 0 of this tile, `plane` elements before the next split. The counter
    is back at 0 afterwards.
    """
    tl.store(partial + tl.program_id(1) * plane, mine, keep)
    tl.debug_barrier()
    last = tl.atomic_add(arrived, 1, sem="acq_rel") == SPLITS - 1
    total = tl.zeros_like(mine)
    if last:
        for split in tl.static_range(SPLITS):
            total += tl.load(partial + split * plane, keep, other=0, cache_modifier=".cg")
        tl.store(arrived, 0)
    return last, total


@triton.jit(do_not_specialize=["rows"])
def skinny(
    x,
    weight,
    bias,
    out,
    partial,
    arrived,
    x_stride,
    rows,
    outputs,
    inputs,
    span,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out [rows, outputs] = x [rows, inputs] weight^T; split i takes inputs from i * span on."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    begin = tl.program_id(1) * span
    end = tl.minimum(begin + span, inputs)
    n = tl.program_id(0) * TILE + tl.arange(0, TILE)
    r, k = tl.arange(0, ROWS), tl.arange(0, DEPTH)
    live, keep = r[None, :] < rows, (n[:, None] < outputs) & (r[None, :] < rows)
    # Rows beyond the end repeat the last one: no mask on the loads of weights.
    w_at = weight + tl.minimum(n, outputs - 1).to(tl.int64)[:, None] * inputs + k[None, :]
    x_at = x + r.to(tl.int64)[None, :] * x_stride + k[:, None]
    total = tl.zeros([TILE, ROWS], tl.float32)
    up = tl.zeros([TILE, ROWS], tl.float32)
    for at in tl.range(begin, end, DEPTH, num_stages=STAGES):
        w = _weights(w_at + at, at + k, end, EVEN)
        v = tl.load(x_at + at, live if EVEN else live & (at + k < end)[:, None], other=0)
        total = tl.dot(w, v, total)
        if GATED:
            up_w = _weights(w_at + outputs.to(tl.int64) * inputs + at, at + k, end, EVEN)
            up = tl.dot(up_w, v, up)
    slot = r.to(tl.int64)[None, :] * outputs + n[:, None]
    if SPLITS > 1:
        plane = rows.to(tl.int64) * outputs
        counter = arrived + tl.program_id(0)
        last, total = sum_of_splits(total, partial + slot, counter, plane, keep, SPLITS)
        # Not `keep & last`: Triton 3.9's interpreter widens a scalar bool to integers.
        keep = keep & (r[None, :] < tl.where(last, rows, 0))
    if GATED:
        total = total * tl.sigmoid(total) * up
    if HAS_BIAS:
        total += tl.load(bias + n, n < outputs, other=0).to(tl.float32)[:, None]
    tl.store(out + slot, total.to(out.dtype.element_ty), keep)
