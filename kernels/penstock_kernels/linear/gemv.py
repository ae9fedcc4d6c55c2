"""Triton kernel of one row times a matrix: whole rows of the weights in registers.

A program starts its first loads of the weights before it waits for the kernel that computes x, so
memory stays busy between kernels (see `pdl`).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _tile(weight, tile, outputs, inputs, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """Loads a tile [TILE, DEPTH] of the weights; does not read beyond their end."""
    n = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    k = tl.arange(0, DEPTH)
    at = weight + n[:, None] * inputs + k[None, :]
    return tl.load(at, (n < outputs)[:, None] & (k < inputs)[None, :], other=0)


@triton.jit
def _products(w, x):
    return tl.sum(w.to(tl.float32) * x.to(tl.float32)[None, :], 1)


@triton.jit
def _row(
    x,
    residual,
    scale,
    total,
    inputs,
    eps,
    NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Returns x, or with NORM its rms_norm; the first program stores the sum in `total`."""
    k = tl.arange(0, DEPTH)
    row = tl.load(x + k, k < inputs, other=0)
    if HAS_RESIDUAL:
        addend = tl.load(residual + k, k < inputs, other=0).to(tl.float32)
        row = (row.to(tl.float32) + addend).to(row.dtype)
        if tl.program_id(0) == 0:
            tl.store(total + k, row, k < inputs)
    if NORM:
        wide = row.to(tl.float32)
        normed = wide * tl.rsqrt(tl.sum(wide * wide) / inputs + eps)
        row = (normed * tl.load(scale + k, k < inputs, other=0).to(tl.float32)).to(row.dtype)
    return row


@triton.jit
def gemv(
    x,
    residual,
    scale,
    total_row,
    weight,
    bias,
    out,
    outputs,
    inputs,
    eps,
    NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    LOOP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out [outputs] = x [inputs] weight^T; DEPTH is a power of 2 not below `inputs`.

    With NORM, every program normalises x itself first; this costs less than another launch.
    """
    tile = tl.program_id(0)
    up_weight = weight + outputs.to(tl.int64) * inputs
    w = _tile(weight, tile, outputs, inputs, TILE, DEPTH)
    if GATED:
        up_w = _tile(up_weight, tile, outputs, inputs, TILE, DEPTH)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = _row(x, residual, scale, total_row, inputs, eps, NORM, HAS_RESIDUAL, DEPTH)
    tiles = tl.cdiv(outputs, TILE) if LOOP else tile + 1
    while tile < tiles:
        if LOOP:
            following = tile + tl.num_programs(0)
            next_w = _tile(weight, following, outputs, inputs, TILE, DEPTH)
            if GATED:
                next_up_w = _tile(up_weight, following, outputs, inputs, TILE, DEPTH)
        total = _products(w, row)
        if GATED:
            total = total * tl.sigmoid(total) * _products(up_w, row)
        n = tile * TILE + tl.arange(0, TILE)
        if HAS_BIAS:
            total += tl.load(bias + n, n < outputs, other=0).to(tl.float32)
        tl.store(out + n, total.to(out.dtype.element_ty), n < outputs)
        if LOOP:
            w = next_w
            if GATED:
                up_w = next_up_w
            tile = following
        else:
            tile = tiles
