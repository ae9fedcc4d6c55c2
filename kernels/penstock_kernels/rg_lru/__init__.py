"""The recurrence of Griffin: a number per channel, whose decay follows from a gate per token."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_contiguous, expect_out, expect_rank, expect_rows
from ..op import Op
from ..recurrence import Runs, expect_states
from . import reference

_OP = Op("rg_lru", reference.rg_lru, mutates=("states",))


def rg_lru(
    x: Tensor,
    gates: Tensor,
    beside: Tensor,
    channels: tuple[Tensor, Tensor],
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
) -> Tensor:
    """Reads and updates a number h of each sequence and channel, token by token:

        h = a h + sqrt(1 - a^2) sigmoid(i) x;  out = h gelu(beside), by tanh

    with a = exp(-rate sigmoid(r)), and i and r the gates of a token with their biases. What the
    first token of a sequence adds has no square root: h = sigmoid(i) x.

    Args: x and beside [T, D] of one float dtype, tokens may be strided; gates [T, H, 2, D / H] of
        x's dtype, contiguous: of each block of channels i, then r; channels: rate [D] and biases
        [H, 2, D / H], contiguous, of float32 or float64; states [blocks, 1, 1, 1, D] float32
        (float64 for float64 inputs), written in place; runs: what runs, and where its states are;
        out [T, D]: where to put the result.
    Returns: [T, D] of x's dtype; zeros for padding rows of decodes. Rows before query_start[0] and
        from query_start[S] on are left alone in `out`, undefined in a new tensor.
    Raises: ValueError for a shape, dtype or stride that is not as above.
    Precision: float32 inside; the result is rounded once.
    Reproducible: a row depends by rounding alone on how its sequence was cut into runs.
    Bytes moved: 5 T D elements, and 8 D bytes for each sequence.
    Source: De et al., Griffin, 2024 (arXiv:2402.19427), section 2.4; the first token as in
        RecurrentGemma (arXiv:2404.07839).
    """
    expect_rank("x", x, "T, D")
    expect_rank("gates", gates, "T, H, 2, B")
    (tokens, count), blocks = x.shape, max(gates.shape[1], 1)
    expect("x", x, (tokens, count), FLOATS)
    expect("beside", beside, (tokens, count), (x.dtype,))
    expect_rows("x", x)
    expect_rows("beside", beside)
    if count % blocks:
        raise ValueError(f"{blocks} blocks of gates do not divide {count} channels")
    of_gates = (blocks, 2, count // blocks)
    expect("gates", gates, (tokens, *of_gates), (x.dtype,))
    expect_contiguous("gates", gates)
    for name, tensor, shape in zip(("rate", "biases"), channels, ((count,), of_gates), strict=True):
        expect(name, tensor, shape, (torch.float32, torch.float64))
        expect_contiguous(name, tensor)
    expect_states("states", states, (1, 1, 1, count))
    wide = torch.promote_types(x.dtype, torch.float32)
    expect("states", states, tuple(states.shape), (wide,))
    expect_out(x, out)
    runs.check(tokens)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _OP.on(x)(x, gates, beside, channels, states, runs, out)
