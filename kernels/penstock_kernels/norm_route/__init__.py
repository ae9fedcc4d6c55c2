"""The router of a mixture of experts behind a norm: how the sparse half of a block begins."""

from __future__ import annotations

from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from ..route_experts import expect_routing
from ..route_experts.routing import Routing
from . import reference

_OP = Op("norm_route", reference.norm_route)


def norm_route(
    x: Tensor,
    residual: Tensor | None,
    scale: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    correction: Tensor | None,
    routing: Routing,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """total = x + residual; z = rms_norm(total) * scale; `route_experts` of z W^T + b.

    Args: x and residual [T, k] any float, rows may be strided; scale [k]; weight [E, k] contiguous
        and bias [E] of x's dtype or float32, constants as for `linear`; correction [E] float, the
        bias of `route_experts`.
    Returns: (z [T, k]; total [T, k], x itself without a residual; ids [T, top_k] int32, from the
        best on; weights [T, top_k] float32).
    Precision: float32 inside; total and z are rounded to x's dtype as `rms_norm` rounds them, the
        logits to W's. Equal rows give equal results, whatever else is in the batch, up to 16 rows.
    Bytes moved: W, once; 4 T k elements of the others.
    Source: as `rms_norm` and `route_experts`.
    """
    expect_rank("x", x, "T, k")
    expect_rows("x", x)
    if residual is not None:
        expect("residual", residual, tuple(x.shape), (x.dtype,))
        expect_rows("residual", residual)
    expect("scale", scale, (x.shape[1],), FLOATS)
    expect_rank("weight", weight, "E, k")
    expect("weight", weight, (weight.shape[0], x.shape[1]), FLOATS)
    for name, each in (("bias", bias), ("correction", correction)):
        if each is not None:
            expect(name, each, (weight.shape[0],), FLOATS)
    expect_routing(weight.shape[0], routing)
    return _OP.on(x)(x, residual, scale, eps, weight, bias, correction, routing)
