"""Reference of gated_delta_rule in torch: token by token of decodes, in chunks of prompts.

Within a chunk, let G be the sum of g up to a token and u = b (v - k^T S) what the token adds. With
the state S before the chunk,

    u[t] = b[t] (v[t] - exp(G[t]) k[t]^T S - sum over j < t of exp(G[t] - G[j]) (k[t] k[j]) u[j])

is a triangular system, and the outputs and the next state are sums over u.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..recurrence import Runs, in_chunks
from ..shared import wide

CHUNK = 64  # tokens
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
) -> Tensor:
    """See the public function."""
    if out is None:
        out = v.new_empty(v.shape)
    shared = v.shape[1] // q.shape[1]
    q = (normed(q) * q.shape[2] ** -0.5).repeat_interleave(shared, 1)
    k = normed(k).repeat_interleave(shared, 1)
    g = -decay_log.to(q.dtype).exp() * softplus(wide(decay) + decay_bias.to(q.dtype))
    tokens = q, k, wide(v), most * wide(strength).sigmoid(), g
    if runs.query_start is None:
        return _one_each(tokens, states, runs, out)
    return in_chunks(_chunk, tokens, states, runs, out, CHUNK)


def normed(x: Tensor) -> Tensor:
    """x [T, heads, D] of length 1, in float32."""
    x = wide(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def _one_each(tokens: tuple[Tensor, ...], states: Tensor, runs: Runs, out: Tensor) -> Tensor:
    q, k, v, strength, g = tokens
    live, blocks = runs.kv_len > 0, runs.blocks()
    state = states[blocks, 0].masked_fill((runs.kv_len < 2)[:, None, None, None], 0)
    state = state * g.exp()[..., None, None]
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
    since = (total[:, :, None] - total[:, None, :]).tril().exp().tril()  # [H, n, n]
    from_start = total.exp()[..., None]
    system = (strength[..., None] * (k @ k.mT) * since).tril(-1)
    wanted = strength[..., None] * (v - from_start * (k @ state))
    added = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out = from_start * (q @ state) + (q @ k.mT * since) @ added
    to_end = (total[:, -1:] - total).exp()[..., None]
    return out, from_start[:, -1:] * state + (k * to_end).mT @ added
