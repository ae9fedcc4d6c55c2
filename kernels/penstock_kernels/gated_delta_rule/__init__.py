"""The gated delta rule: linear attention whose state forgets, and corrects what it has stored."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_contiguous, expect_out, expect_rank, expect_rows
from ..op import Op
from ..recurrence import Runs, expect_states
from . import reference

_OP = Op("gated_delta_rule", reference.gated_delta_rule, mutates=("states",))


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    decay: Tensor,
    decay_log: Tensor,
    decay_bias: Tensor,
    states: Tensor,
    runs: Runs,
    out: Tensor | None = None,
    most: float = 1.0,
    bound: float = 0.0,
) -> Tensor:
    """Reads and updates a state S [D, E] of each sequence and value head, token by token:

        S = exp(g) S;  S = S + k (b (v - k^T S))^T;  out = q^T S / sqrt(D)

    with g = -exp(decay_log) softplus(decay + decay_bias), or with a `bound` below 0
    g = bound sigmoid(exp(decay_log) (decay + decay_bias)), b = most * sigmoid(strength), and q
    and k divided by their length. A key head serves Hv / Hk consecutive value heads. g is a number
    of each head, or of each channel of a key: then exp(g) S multiplies the rows of S.

    Args: q and k [T, Hk, D], v [T, Hv, E] of one float dtype, tokens may be strided, heads of a
        token are contiguous; strength [T, Hv] and decay [T, Hv] or [T, Hv, D] of that dtype,
        strided likewise; decay_log [Hv] and decay_bias [Hv] or [Hv, D] float32; states
        [blocks, 1, Hv, D, E] float32 (float64 for float64 inputs), written in place; runs: what
        runs, and where its states are; out [T, Hv, E]: where to put the result; most: up to 2, then
        a state may change its sign; bound: the least g of a channel, 0 = none.
    Returns: [T, Hv, E] of q's dtype; zeros for padding rows of decodes. Rows before query_start[0]
        and from query_start[S] on are left alone in `out`, undefined in a new tensor.
    Precision: float32 inside; the result is rounded once.
    Reproducible: a row depends by rounding alone on how its sequence was cut into runs.
    Bytes moved: T (2 Hk D + 2 Hv E) elements, T Hv D more with decays of channels, and 8 Hv D E
        bytes for each sequence.
    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024; of chunks, Yang et al.,
        Parallelizing Linear Transformers with the Delta Rule over Sequence Length, 2024; of
        channels' decays, Kimi Team, Kimi Linear, 2025, section 3.
    """
    _check_heads(q, k, v)
    _check_gates(v, strength, decay, decay_log, decay_bias, q.shape[2])
    expect_states("states", states, (1, v.shape[1], q.shape[2], v.shape[2]))
    wide = torch.promote_types(q.dtype, torch.float32)
    expect("states", states, tuple(states.shape), (wide,))
    expect_out(v, out)
    if bound > 0 or (bound and decay.dim() == 2):
        raise ValueError(f"bound is {bound}; expected up to 0, and below only with channels")
    runs.check(len(v))
    if out is None:
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    return _OP.on(q)(
        q, k, v, strength, decay, decay_log, decay_bias, states, runs, out, most, bound
    )


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises ValueError unless queries, keys and values fit together."""
    expect_rank("q", q, "T, Hk, D")
    expect_rank("v", v, "T, Hv, E")
    tokens, key_heads, _ = q.shape
    expect("q", q, tuple(q.shape), FLOATS)
    expect("k", k, tuple(q.shape), (q.dtype,))
    expect("v", v, (tokens, *v.shape[1:]), (q.dtype,))
    if v.shape[1] % key_heads:
        raise ValueError(f"{v.shape[1]} value heads are not a multiple of {key_heads} key heads")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _expect_heads(name, tensor)


def _check_gates(
    v: Tensor,
    strength: Tensor,
    decay: Tensor,
    decay_log: Tensor,
    decay_bias: Tensor,
    key_dim: int,
) -> None:
    """Raises ValueError unless strengths and decays fit the values, and each other."""
    tokens, heads, _ = v.shape
    expect("strength", strength, (tokens, heads), (v.dtype,))
    expect_rows("strength", strength)
    shape = (heads, key_dim) if decay.dim() == 3 else (heads,)
    expect("decay", decay, (tokens, *shape), (v.dtype,))
    if decay.dim() == 3:
        _expect_heads("decay", decay)
    else:
        expect_rows("decay", decay)
    expect("decay_log", decay_log, (heads,), (torch.float32, torch.float64))
    expect("decay_bias", decay_bias, shape, (torch.float32, torch.float64))
    expect_contiguous("decay_bias", decay_bias)


def _expect_heads(name: str, x: Tensor) -> None:
    """Raises ValueError unless the heads of a token of x [T, heads, ...] are contiguous."""
    expect_rows(name, x)
    if x.shape[1] > 1 and x.stride(1) != x.shape[2]:
        raise ValueError(f"{name} has strides {x.stride()}; expected contiguous heads")
