"""Reference of channel_scan in torch: token by token of decodes, in chunks of prompts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from ..recurrence import Runs, accumulated, in_chunks
from ..shared import wide

CHUNK = 16  # tokens


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
    """See the public function."""
    if out is None:
        out = x.new_empty(x.shape)
    values, b, c = wide(x), wide(b), wide(c)
    decay_log, step_bias, skip = (each.to(values.dtype) for each in channels)
    dt = softplus(wide(step) + step_bias)
    rate = -decay_log.exp().T  # [N, D]
    b, c = b.mT, c.mT  # [T, N, H]
    tokens = b, c, values * dt, dt, values * skip, silu(wide(gate))

    def chunk(some: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        return _chunk(some, rate, state)

    if runs.query_start is None:
        return _one_each(tokens, rate, states, runs, out)
    alone = [each[:, None] for each in tokens]
    in_chunks(chunk, alone, states, runs, out[:, None], CHUNK)
    return out


def _one_each(
    tokens: tuple[Tensor, ...], rate: Tensor, states: Tensor, runs: Runs, out: Tensor
) -> Tensor:
    b, c, added, dt, skipped, gate = tokens
    live, blocks = runs.kv_len > 0, runs.blocks()
    state = states[blocks, 0, 0].masked_fill((runs.kv_len < 2)[:, None, None], 0)
    state = state * (rate * dt[:, None]).exp() + _outer(b, added)
    found = ((_read(c, state) + skipped) * gate).to(out.dtype)
    out.copy_(found.masked_fill(~live[:, None], 0))
    states[blocks[live], 0, 0] = state[live]
    return out


def _chunk(tokens: list[Tensor], rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [1, n, D] of n tokens (b, c, dt x, dt, skip x, SiLU of the gate, of [1, n, ...]), and
    the next state [1, N, D]."""
    b, c, added, dt, skipped, gate = (each[0] for each in tokens)
    decay = (rate * dt[:, None]).exp()  # [n, N, D]
    total = accumulated(decay, _outer(b, added), state[0])
    out = (_read(c, total) + skipped) * gate
    return out[None], total[-1:]


def _outer(b: Tensor, added: Tensor) -> Tensor:
    """What tokens add to states [n, N, D]: b [n, N, H] of each channel's head times `added` [n,
    D]."""
    heads: Tensor = added.unflatten(1, (b.shape[2], -1))
    return (b[..., None] * heads[:, None]).flatten(2)


def _read(c: Tensor, state: Tensor) -> Tensor:
    """c [n, N, H] of each channel's head times its state, of [n, N, D] -> [n, D]."""
    heads: Tensor = state.unflatten(2, (c.shape[2], -1))
    return torch.einsum("tnh,tnhd->thd", c, heads).flatten(1)
