"""norm_linear on CUDA: one row is normalised by the product's own programs, more rows before it."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from ..linear.plan import Gemv
from ..linear.triton import give_up, launch_gemv, linear, plan_of, problem_of
from ..rms_norm import NormInput


def norm_linear(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    gated: bool = False,
) -> tuple[Tensor, Tensor]:
    """See the public function."""
    problem, norm_input = problem_of(weight, gated), NormInput(x, residual, scale, eps)
    plan = plan_of(x, weight, problem)
    if not isinstance(plan, Gemv):
        x, total = norm_input.normed()
        return linear(x, weight, bias, gated), total
    total = x if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = torch.empty((1, problem.outputs), dtype=x.dtype, device=x.device)
    try:
        launch_gemv(plan, problem, (norm_input, total), weight, bias, out)
    except OutOfResources as error:
        give_up(problem, len(x), error)
        return norm_linear(x, residual, scale, eps, weight, bias, gated)
    return out, total
