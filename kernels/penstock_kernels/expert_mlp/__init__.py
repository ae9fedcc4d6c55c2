"""The feed-forward layer of a mixture of experts: each token's experts, weighted and added up."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, INDEX, expect, expect_rank, expect_rows
from ..op import Op
from ..packed_linear import expect_packed
from ..route_experts.routing import Routed
from . import reference
from .experts import Activation, Experts, Matrices, count, inputs, outputs

__all__ = ["Activation", "Experts", "expert_mlp"]

_OP = Op("expert_mlp", reference.expert_mlp, without="many times as long")


def expert_mlp(x: Tensor, routed: Routed, experts: Experts) -> Tensor:
    """y[t] = sum over choices c of w[t, c] (D_e act(G_e x[t] + g_e, U_e x[t] + u_e) + d_e).

    Without a gate (see `Activation`) act has the ups alone.

    e is ids[t, c] - `experts.first`; a choice whose e is not among the experts here adds nothing.

    Args: x [T, hidden] float32, bfloat16 or float16, rows may be strided; routed: ids [T, top_k]
        int32, weights [T, top_k] float, both contiguous; experts: matrices of x's dtype,
        contiguous, or `PackedWeight`s with a leading dimension of experts.
    Returns: [T, hidden] of x's dtype, new and contiguous.
    Precision: products accumulate in float32, in an order that does not depend on timing. What
        the activation makes is rounded to x's dtype. The weighted sum of a token's experts is of
        float32, in the order of its choices, rounded once; see `plan` for how many rows its
        summands are rounded to x's dtype, too. FP8 weights in groups of a multiple of 128: on a
        Hopper GPU, of bfloat16 x and more than 20 rows per expert on average, x and what the
        activation makes are rounded to e4m3, with a scale per 128 inputs (see `round_rows`).
    Nothing waits for the device: shapes depend on T and top_k alone, so CUDA graphs can hold it.
    Bytes moved: the weights of the experts that have tokens, once; 2 T hidden elements of x and y.
    Source: Shazeer et al., Outrageously Large Neural Networks, 2017; Gale et al., MegaBlocks, 2022.
    """
    expect_rank("x", x, "T, hidden")
    expect_rows("x", x)
    expect_rank("ids", routed.ids, "T, top_k")
    tokens, hidden = x.shape
    expect("ids", routed.ids, (tokens, routed.ids.shape[1]), INDEX)
    expect("weights", routed.weights, tuple(routed.ids.shape), FLOATS)
    inner = experts.inner
    _expect("gate_up", experts.gate_up, (experts.count, experts.sides * inner, hidden), x.dtype)
    _expect("down", experts.down, (experts.count, hidden, inner), x.dtype)
    if experts.gate_up_bias is not None:
        expect("gate_up_bias", experts.gate_up_bias, (experts.count, experts.sides * inner), FLOATS)
    if experts.down_bias is not None:
        expect("down_bias", experts.down_bias, (experts.count, hidden), FLOATS)
    return _OP.on(x)(x, routed, experts)


def _expect(name: str, matrices: Matrices, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Raises ValueError unless these are `shape`: experts, outputs and inputs."""
    if isinstance(matrices, Tensor):
        expect(name, matrices, shape, (dtype,))
        if not matrices.is_contiguous():
            raise ValueError(f"{name} has strides {matrices.stride()}; expected contiguous")
        return
    found = count(matrices), outputs(matrices), inputs(matrices)
    if found != shape:
        raise ValueError(f"{name} has shape {found}; expected {shape}")
    expect_packed(matrices.of_expert(0))
