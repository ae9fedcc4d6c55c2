"""The recurrence of Mamba-2: a state that decays and adds each token's outer product."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_out, expect_rank, expect_rows
from ..op import Op
from ..recurrence import Runs, expect_states
from . import reference

_OP = Op("selective_scan", reference.selective_scan, mutates=("states",))


def selective_scan(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    step: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    limits: tuple[float, float],
    out: Tensor | None = None,
) -> Tensor:
    """Reads and updates a state S [N, P] of each sequence and head, token by token:

        S = exp(-exp(decay_log) dt) S + dt b x^T;  out = c^T S + skip x

    with dt = softplus(step + step_bias), within `limits`. A group's b and c serve H / G consecutive
    heads. Lightning attention (arXiv:2401.04658) is the case of values x, keys b and queries c of
    each head, limits (1, 1), which leave nothing of `step`, and no skip.

    Args: x [T, H, P], b and c [T, G, N] of one float dtype, tokens may be strided, heads and groups
        of a token are contiguous; step [T, H] of that dtype, tokens may be strided; heads:
        decay_log, step_bias and skip [H] float32; states [blocks, 1, H, N, P] float32 (float64 for
        float64 inputs), written in place; runs: what runs, and where its states are; out [T, H, P]:
        where to put the result.
    Returns: [T, H, P] of x's dtype; zeros for padding rows of decodes. Rows before query_start[0]
        and from query_start[S] on are left alone in `out`, undefined in a new tensor.
    Precision: float32 inside; the result is rounded once.
    Reproducible: a row depends by rounding alone on how its sequence was cut into runs.
    Bytes moved: T (2 H P + 2 G N) elements, and 8 H N P bytes for each sequence.
    Source: Dao and Gu, Transformers are SSMs (Mamba-2), 2024, sections 5 and 6.
    """
    expect_rank("x", x, "T, H, P")
    expect_rank("b", b, "T, G, N")
    tokens, count, size = x.shape
    expect("x", x, tuple(x.shape), FLOATS)
    expect("b", b, (tokens, *b.shape[1:]), (x.dtype,))
    expect("c", c, tuple(b.shape), (x.dtype,))
    expect("step", step, (tokens, count), (x.dtype,))
    if count % b.shape[1]:
        raise ValueError(f"{count} heads are not a multiple of {b.shape[1]} groups")
    for name, tensor in (("x", x), ("b", b), ("c", c), ("step", step)):
        expect_rows(name, tensor)
        if tensor.dim() == 3 and tensor.shape[1] > 1 and tensor.stride(1) != tensor.shape[2]:
            raise ValueError(f"{name} has strides {tensor.stride()}; expected contiguous heads")
    for name, tensor in zip(("decay_log", "step_bias", "skip"), heads, strict=True):
        expect(name, tensor, (count,), (torch.float32, torch.float64))
    expect_states("states", states, (1, count, b.shape[2], size))
    wide = torch.promote_types(x.dtype, torch.float32)
    expect("states", states, tuple(states.shape), (wide,))
    expect_out(x, out)
    runs.check(tokens)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _OP.on(x)(x, b, c, step, heads, states, runs, limits, out)
