"""Reference of gated_delta_rule in torch: token by token of decodes, in chunks of prompts.

Within a chunk, let G be the sum of g up to a token and u = b (v - k^T S) what the token adds. With
the state S before the chunk,

    u[t] = b[t] (v[t] - exp(G[t]) k[t]^T S - sum over j < t of exp(G[t] - G[j]) (k[t] k[j]) u[j])

is a triangular system, and the outputs and the next state are sums over u. Where channels have
decays of their own, each channel's part of a product decays by its own G. Differences of sums are
taken before exp, which is then 1 at most.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..recurrence import Runs, in_chunks
from ..shared import wide

CHUNK = 64  # tokens
CHANNEL_CHUNK = 16  # where a pair of tokens has a decay of each channel
EPS = 1e-6  # of the length of queries and keys, squared


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
    """See the public function."""
    if out is None:
        out = v.new_empty(v.shape)
    shared = v.shape[1] // q.shape[1]
    q = (normed(q) * q.shape[2] ** -0.5).repeat_interleave(shared, 1)
    k = normed(k).repeat_interleave(shared, 1)
    if decay.dim() == 2:  # the same for all channels
        decay, decay_bias = decay[..., None], decay_bias[:, None]
    rate, forget = decay_log.to(q.dtype).exp()[:, None], wide(decay) + decay_bias.to(q.dtype)
    g = bound * (rate * forget).sigmoid() if bound else -rate * softplus(forget)
    tokens = q, k, wide(v), most * wide(strength).sigmoid(), g
    if runs.query_start is None:
        return _one_each(tokens, states, runs, out)
    size = CHUNK if g.shape[2] == 1 else CHANNEL_CHUNK
    return in_chunks(_chunk, tokens, states, runs, out, size)


def normed(x: Tensor) -> Tensor:
    """x [T, heads, D] of length 1, in float32."""
    x = wide(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def _one_each(tokens: tuple[Tensor, ...], states: Tensor, runs: Runs, out: Tensor) -> Tensor:
    q, k, v, strength, g = tokens
    live, blocks = runs.kv_len > 0, runs.blocks()
    state = states[blocks, 0].masked_fill((runs.kv_len < 2)[:, None, None, None], 0)
    state = state * g.exp()[..., None]
    added = strength[..., None] * (v - torch.einsum("shd,shde->she", k, state))
    state = state + k[..., :, None] * added[..., None, :]
    found = torch.einsum("shd,shde->she", q, state).to(out.dtype)
    out.copy_(found.masked_fill(~live[:, None, None], 0))
    states[blocks[live], 0] = state[live]
    return out


def _chunk(tokens: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [H, n, E] of n tokens (q, k, v, strength, g of [H, n, ...]), and the next state."""
    q, k, v, strength, g = tokens
    total = g.cumsum(1)
    from_start = total.exp()
    system = (strength[..., None] * _decayed(k, k, total)).tril(-1)
    wanted = strength[..., None] * (v - (from_start * k) @ state)
    added = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out = (from_start * q) @ state + _decayed(q, k, total) @ added
    to_end = (total[:, -1:] - total).exp()
    return out, from_start[:, -1, :, None] * state + (k * to_end).mT @ added


def _decayed(x: Tensor, k: Tensor, total: Tensor) -> Tensor:
    """Products [H, n, n] of x and k [H, n, D] of each token and those up to it, decayed by the
    difference of their `total` [H, n, 1 or D]; others are 0."""
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
    steps = (total[:, :, None] - total[:, None]).masked_fill(~seen[..., None], -torch.inf).exp()
    if total.shape[2] == 1:
        return x @ k.mT * steps[..., 0]
    return torch.einsum("htd,hjd,htjd->htj", x, k, steps)
