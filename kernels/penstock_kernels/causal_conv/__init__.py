"""Short causal convolution of each channel, with or without SiLU; states keep the last inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_contiguous, expect_out, expect_rank, expect_rows
from ..op import Op
from ..recurrence import Runs
from . import reference

_OP = Op("causal_conv", reference.causal_conv, mutates=("states",))


def causal_conv(
    x: Tensor,
    weight: Tensor,
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    silu: bool = True,
    taps: Tensor | None = None,
) -> Tensor:
    """y[t] = silu(bias + sum over i of weight[i] x[t - W + 1 + i]), for each channel of each
    sequence; without `silu`, the sum itself. With `taps`, weight[i] + taps[t, i].

    Inputs before a run are those in the sequence's state, or zeros if it has none; the state is
    replaced by the last W - 1 inputs.

    Args: x [T, C] of a float dtype, rows may be strided; weight [C, W] of x's dtype or float32;
        states [blocks, 1, 1, C, W - 1] of x's dtype, the newest input last, written in place: each
        block is contiguous, and may be a part of a larger one; runs: what runs, and where its
        states are; out [T, C]: where to put the result; bias [C] of x's dtype;
        taps [T, G, W] of weight's dtype: what each token adds to the weights, of G groups of
        equally many channels.
    Returns: [T, C] of x's dtype; zeros for padding rows of decodes. Rows before query_start[0] and
        from query_start[S] on are left alone in `out`, undefined in a new tensor.
    Precision: float32 inside, one rounding at the end.
    Reproducible: a row does not depend on how its sequence was cut into runs.
    Bytes moved: 2 T C elements, and 2 (W - 1) C for each sequence.
    Source: Dauphin et al., Language Modeling with Gated Convolutional Networks, 2017 (causal
        padding); Gu and Dao, Mamba, 2023, section 3.4 (before a recurrence).
    """
    expect_rank("x", x, "T, C")
    tokens, channels = x.shape
    expect("x", x, (tokens, channels), FLOATS)
    expect_rows("x", x)
    expect_rank("weight", weight, "C, W")
    expect("weight", weight, (channels, weight.shape[1]), (x.dtype, torch.float32))
    expect_contiguous("weight", weight)
    expect("states", states, (len(states), 1, 1, channels, weight.shape[1] - 1), (x.dtype,))
    expect_contiguous("a block of states", states[:1])
    expect_out(x, out)
    if bias is not None:
        expect("bias", bias, (channels,), (x.dtype,))
        expect_contiguous("bias", bias)
    if taps is not None:
        expect_rank("taps", taps, "T, G, W")
        groups = max(taps.shape[1], 1)
        expect("taps", taps, (tokens, groups, weight.shape[1]), (weight.dtype,))
        expect_contiguous("taps", taps)
        if channels % groups:
            raise ValueError(f"{groups} groups of taps do not divide {channels} channels")
    runs.check(tokens)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _OP.on(x)(x, weight, states, runs, out, bias, silu, taps)
