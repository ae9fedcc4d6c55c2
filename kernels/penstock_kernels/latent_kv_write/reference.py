"""Reference of latent_kv_write in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..shared import wide


def latent_kv_write(
    q: Tensor,
    kv: Tensor,
    scale: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    out: Tensor,
    interleaved: bool = False,
) -> None:
    """See the public function."""
    rank, block_tokens = len(scale), kv_cache.shape[3]
    angles = cos_sin.index_select(0, positions).to(wide(q[:0]).dtype)
    out[..., rank:] = _rotated(wide(q), angles[:, None], interleaved)
    rows = torch.empty(kv.shape, dtype=kv.dtype, device=kv.device)
    latent = wide(kv[:, :rank])
    norm = torch.rsqrt(latent.square().mean(-1, keepdim=True) + eps)
    rows[:, :rank] = latent * norm * wide(scale)
    rows[:, rank:] = _rotated(wide(kv[:, rank:]), angles, interleaved)
    written = slot_mapping >= 0
    slots = slot_mapping[written].long()
    kv_cache[slots // block_tokens, 0, 0, slots % block_tokens, : kv.shape[1]] = rows[written]


def _rotated(x: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """x [..., R] by angles [..., R], cosines then sines; a new tensor, in halves."""
    cos, sin = angles.chunk(2, dim=-1)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
