"""packed_norm_linear on CUDA: one row is normalised by the product's own programs, rows that are
multiplied as float8 are normalised and rounded by one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ..act_mul import act_mul
from ..packed_linear import PackedWeight, float8
from ..packed_linear.triton import ROW, packed_linear
from ..rms_norm import NormInput


def packed_norm_linear(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    weight: PackedWeight,
    bias: Tensor | None = None,
    gated: bool = False,
) -> tuple[Tensor, Tensor]:
    """See the public function."""
    norm_input = NormInput(x, residual, scale, eps)
    outputs = weight.outputs // (2 if gated else 1)
    if len(x) == 1 and outputs:
        out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
        total = x
        if residual is not None:
            total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if ROW.launch(x.device, x, weight, bias, gated, out, (norm_input, total)):
            return out, total
    if outputs and float8.takes(x, weight):
        rows, total = float8.normed(norm_input)
        product = float8.multiply(rows, weight, bias, x.dtype)
        return (act_mul(product) if gated else product), total
    normed, total = norm_input.normed()
    return packed_linear(normed, weight, bias, gated), total
