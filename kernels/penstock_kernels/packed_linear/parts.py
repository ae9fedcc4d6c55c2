"""Sums of outputs that several programs share: the last one to arrive adds up their parts."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment,misc"

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..device import arrivals, divided_up
from ..hopper import barrier
from .plan import COUNTERS, STRIP


@gluon.jit
def add_parts(out, parts, arrived, first, outputs, SPLITS: gl.constexpr, WARPS: gl.constexpr):
    """Announces a program's part of 16 outputs from `first`. The last of SPLITS programs writes
    their sum, in the order of `parts` [SPLITS, outputs], and sets the counter `arrived` to 0."""
    barrier()  # all of the part is written before it is announced
    if gl.atomic_add(arrived, 1, sem="acq_rel") == SPLITS - 1:
        gl.store(arrived, 0)  # for the next launch
        L: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
        n = first + gl.arange(0, 16, L)
        total = gl.zeros([16], gl.float32, L)
        for i in gl.static_range(SPLITS):
            at = parts + i * outputs + n
            total += gl.load(at, mask=n < outputs, other=0, cache_modifier=".cg")
        gl.store(out + n, total.to(out.dtype.element_ty), mask=n < outputs)


def with_parts(out: Tensor, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """(out [rows, outputs], parts [rows, splits, outputs] float32 of it, counters of 0); with one
    split the others are not used."""
    if splits == 1:
        return out, out, out
    rows, outputs = out.shape
    parts = torch.empty((rows, splits, outputs), dtype=torch.float32, device=out.device)
    counters = max(rows * divided_up(outputs, STRIP), COUNTERS)
    return out, parts, arrivals(out.device, counters)
