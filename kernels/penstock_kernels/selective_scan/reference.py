"""Reference of selective_scan in torch: token by token of decodes, in chunks of prompts.

Within a chunk, let G be the sum of -exp(decay_log) dt up to a token. With the state S before it,

    out[t] = exp(G[t]) c[t]^T S + sum over j <= t of exp(G[t] - G[j]) (c[t] b[j]) dt[j] x[j]
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..recurrence import Runs, in_chunks
from ..shared import wide

CHUNK = 64  # tokens


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
    """See the public function."""
    if out is None:
        out = x.new_empty(x.shape)
    values, shared = wide(x), x.shape[1] // b.shape[1]
    b, c = (wide(each).repeat_interleave(shared, 1) for each in (b, c))
    decay_log, step_bias, skip = (each.to(values.dtype) for each in heads)
    dt = softplus(wide(step) + step_bias).clamp(*limits)
    tokens = b, c, values * dt[..., None], -decay_log.exp() * dt, values * skip[:, None]
    if runs.query_start is None:
        return _one_each(tokens, states, runs, out)
    return in_chunks(_chunk, tokens, states, runs, out, CHUNK)


def _one_each(tokens: tuple[Tensor, ...], states: Tensor, runs: Runs, out: Tensor) -> Tensor:
    b, c, added, decay, skipped = tokens
    live, blocks = runs.kv_len > 0, runs.blocks()
    state = states[blocks, 0].masked_fill((runs.kv_len < 2)[:, None, None, None], 0)
    state = state * decay.exp()[..., None, None] + b[..., :, None] * added[..., None, :]
    found = (torch.einsum("shn,shnp->shp", c, state) + skipped).to(out.dtype)
    out.copy_(found.masked_fill(~live[:, None, None], 0))
    states[blocks[live], 0] = state[live]
    return out


def _chunk(tokens: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [H, n, P] of n tokens (b, c, dt x, decay, skip x of [H, n, ...]), and the next
    state."""
    b, c, added, decay, skipped = tokens
    total = decay.cumsum(1)
    since = (total[:, :, None] - total[:, None, :]).tril().exp().tril()  # [H, n, n]
    out = total.exp()[..., None] * (c @ state) + (c @ b.mT * since) @ added + skipped
    to_end = (total[:, -1:] - total).exp()[..., None]
    return out, total[:, -1:].exp()[..., None] * state + (b * to_end).mT @ added
