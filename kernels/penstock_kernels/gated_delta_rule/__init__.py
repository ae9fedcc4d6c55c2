"""The gated delta rule: linear attention whose state forgets, and corrects what it has stored."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_out, expect_rank, expect_rows
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
) -> Tensor:
    """Reads and updates a state S [D, E] of each sequence and value head, token by token:

        S = exp(g) S;  S = S + k (b (v - k^T S))^T;  out = q^T S / sqrt(D)

    with g = -exp(decay_log) softplus(decay + decay_bias), b = most * sigmoid(strength), and q
    and k divided by their length. A key head serves Hv / Hk consecutive value heads.

    Args: q and k [T, Hk, D], v [T, Hv, E] of one float dtype, tokens may be strided, heads of a
        token are contiguous; strength and decay [T, Hv] of that dtype, tokens may be strided;
        decay_log and decay_bias [Hv] float32; states [blocks, 1, Hv, D, E] float32 (float64 for
        float64 inputs), written in place; runs: what runs, and where its states are; out
        [T, Hv, E]: where to put the result; most: up to 2, then a state may change its sign.
    Returns: [T, Hv, E] of q's dtype; zeros for padding rows of decodes. Rows before query_start[0]
        and from query_start[S] on are left alone in `out`, undefined in a new tensor.
    Precision: float32 inside; the result is rounded once.
    Reproducible: a row depends by rounding alone on how its sequence was cut into runs.
    Bytes moved: T (2 Hk D + 2 Hv E) elements, and 8 Hv D E bytes for each sequence.
    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024; of chunks, Yang et al.,
        Parallelizing Linear Transformers with the Delta Rule over Sequence Length, 2024.
    """
    _check_heads(q, k, v)
    tokens, heads, value_size = v.shape
    for name, tensor in (("strength", strength), ("decay", decay)):
        expect(name, tensor, (tokens, heads), (q.dtype,))
        expect_rows(name, tensor)
    for name, tensor in (("decay_log", decay_log), ("decay_bias", decay_bias)):
        expect(name, tensor, (heads,), (torch.float32, torch.float64))
    expect_states("states", states, (1, heads, q.shape[2], value_size))
    wide = torch.promote_types(q.dtype, torch.float32)
    expect("states", states, tuple(states.shape), (wide,))
    expect_out(v, out)
    runs.check(tokens)
    if out is None:
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    return _OP.on(q)(q, k, v, strength, decay, decay_log, decay_bias, states, runs, out, most)


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
        expect_rows(name, tensor)
        if tensor.shape[1] > 1 and tensor.stride(1) != tensor.shape[2]:
            raise ValueError(f"{name} has strides {tensor.stride()}; expected contiguous heads")
