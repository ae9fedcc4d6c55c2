"""GPTQ (arXiv:2210.17323): each column's rounding error is made up for by the columns after it."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.faults import Fault
from penstock.quant import Quantized
from penstock.quant.grid import Grid, Scales, grouped
from penstock.quantize.options import Options

BLOCK = 128  # columns whose errors reach the columns behind them in one product


def gptq(matrix: Tensor, hessian: Tensor, grid: Grid, options: Options) -> Quantized:
    """Quantizes a matrix [outputs, inputs] float32; `hessian` [inputs, inputs] float32 is the mean
    of x^T x over the calibration's activations.

    Groups hold neighbouring inputs, also in activation order: their scales are then those of the
    unchanged weights ("static groups"), so that no server has to reorder activations.
    """
    weights, hessian = matrix.clone(), hessian.clone()
    dead = hessian.diagonal() == 0
    hessian.diagonal()[dead] = 1
    weights[:, dead] = 0
    inputs = weights.shape[1]
    group = options.group or inputs
    order = torch.arange(inputs, device=weights.device)
    found: list[Scales] = []  # of each group
    if options.act_order:
        found = [grid.scales(part) for part in grouped(weights, group).unbind(1)]
        order = hessian.diagonal().argsort(descending=True, stable=True)
        weights, hessian = weights[:, order].contiguous(), hessian[order][:, order]
    columns = order.tolist()
    factor = _inverse_factor(hessian, options.damp)
    block = _block(group, inputs)
    codes = torch.empty_like(weights)
    for start in range(0, inputs, block):
        end = min(start + block, inputs)
        part, errors = weights[:, start:end], torch.empty_like(weights[:, start:end])
        for column in range(end - start):
            at, value = start + column, part[:, column]
            if columns[at] // group == len(found):
                found.append(grid.scales(weights[:, at : at + group]))
            of = found[columns[at] // group]
            code = grid.codes(value, of)
            codes[:, columns[at]] = code
            error = (value - (code - of.zeros) * of.scales) / factor[at, at]
            part[:, column:] -= torch.outer(error, factor[at, at:end])
            errors[:, column] = error
        weights[:, end:] -= errors @ factor[start:end, end:]
    scales = torch.stack([of.scales for of in found], 1)
    zeros = torch.stack([of.zeros for of in found], 1)
    return grid.quantized(codes, Scales(scales, zeros))


def _block(group: int, inputs: int) -> int:
    """Columns of a block: groups begin where blocks do, or lie within one."""
    if group < BLOCK:
        return BLOCK // group * group
    return group if group % BLOCK and group < inputs else BLOCK


def _inverse_factor(hessian: Tensor, damp: float) -> Tensor:
    """The upper Cholesky factor of the inverse. Damping grows until there is one: a Hessian of few
    activations is singular, and rounding can make it indefinite."""
    mean = hessian.diagonal().mean()
    if not mean.isfinite():
        raise Fault(
            "the calibration's activations are not finite; use another dtype or other texts"
        )
    while True:
        damped = hessian + torch.eye(len(hessian), device=hessian.device) * (damp * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper: Tensor
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                return upper
        damp *= 10
