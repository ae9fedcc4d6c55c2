"""The recurrence of Mamba-1: a state per channel, each of whose elements has a decay of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_contiguous, expect_out, expect_rank, expect_rows
from ..op import Op
from ..recurrence import Runs, expect_states
from . import reference

_OP = Op("channel_scan", reference.channel_scan, mutates=("states",))


def channel_scan(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    step: Tensor,
    gate: Tensor,
    channels: tuple[Tensor, Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
) -> Tensor:
    """Reads and updates a state S [N] of each sequence and channel, token by token:

        S = exp(-exp(decay_log) dt) S + dt x b;  out = (c^T S + skip x) silu(gate)

    with dt = softplus(step + step_bias). Channels of a head share its b and c; there are H heads of
    D / H channels, one after the other.

    Args: x, step and gate [T, D], b and c [T, H, N] of one float dtype, tokens and heads may be
        strided;
        channels: decay_log [D, N], step_bias [D] and skip [D], contiguous, of float32 or float64;
        states [blocks, 1, 1, N, D] float32 (float64 for float64 inputs), written in place; runs:
        what runs, and where its states are; out [T, D]: where to put the result.
    Returns: [T, D] of x's dtype; zeros for padding rows of decodes. Rows before query_start[0] and
        from query_start[S] on are left alone in `out`, undefined in a new tensor.
    Raises: ValueError for a shape, dtype or stride that is not as above.
    Precision: float32 inside; the result is rounded once.
    Reproducible: a row depends by rounding alone on how its sequence was cut into runs.
    Bytes moved: T (4 D + 2 H N) elements, and 8 D N bytes for each sequence.
    Source: Gu and Dao, Mamba, 2023 (arXiv:2312.00752), section 3.2 and algorithm 2. Several heads:
        Glorioso et al., Zamba, 2024 (arXiv:2405.16712).
    """
    expect_rank("x", x, "T, D")
    expect_rank("b", b, "T, H, N")
    (tokens, count), (heads, stored) = x.shape, b.shape[1:]
    if not heads or count % heads:
        raise ValueError(f"{heads} heads cannot share {count} channels equally")
    expect("x", x, (tokens, count), FLOATS)
    expect("b", b, (tokens, heads, stored), (x.dtype,))
    expect("c", c, (tokens, heads, stored), (x.dtype,))
    expect("step", step, (tokens, count), (x.dtype,))
    expect("gate", gate, (tokens, count), (x.dtype,))
    for name, tensor in (("x", x), ("b", b), ("c", c), ("step", step), ("gate", gate)):
        expect_rows(name, tensor)
    shapes = (count, stored), (count,), (count,)
    names = "decay_log", "step_bias", "skip"
    for name, tensor, shape in zip(names, channels, shapes, strict=True):
        expect(name, tensor, shape, (torch.float32, torch.float64))
        expect_contiguous(name, tensor)
    expect_states("states", states, (1, 1, stored, count))
    wide = torch.promote_types(x.dtype, torch.float32)
    expect("states", states, tuple(states.shape), (wide,))
    expect_out(x, out)
    runs.check(tokens)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _OP.on(x)(x, b, c, step, gate, channels, states, runs, out)
