"""Triton kernel of rms_norm: one program per row, which it reads once."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import early_launch, power_of_two

ELEMENTS_PER_WARP = 512


@triton.jit
def _normalise_row(
    x,
    weight,
    residual,
    out,
    total,
    x_stride,
    residual_stride,
    columns,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * x_stride + column, inside, other=0)
    if HAS_RESIDUAL:
        addend = tl.load(residual + row * residual_stride + column, inside, other=0)
        value = (value.to(tl.float32) + addend.to(tl.float32)).to(value.dtype)
        tl.store(total + row * columns + column, value, inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide) / columns + eps)
    normed = wide * scale * tl.load(weight + column, inside, other=0).to(tl.float32)
    tl.store(out + row * columns + column, normed.to(value.dtype), inside)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """See the public function."""
    rows, columns = x.shape
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    total = out if residual is None else torch.empty_like(out)
    addend = x if residual is None else residual
    early = early_launch(x.device)
    block = power_of_two(columns)
    if rows:
        _normalise_row[(rows,)](
            x,
            weight,
            addend,
            out,
            total,
            x.stride(0),
            addend.stride(0),
            columns,
            eps,
            HAS_RESIDUAL=residual is not None,
            BLOCK=block,
            EARLY=early,
            launch_pdl=early,
            num_warps=min(max(block // ELEMENTS_PER_WARP, 1), 16),
        )
    return out if residual is None else (out, total)
