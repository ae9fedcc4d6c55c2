"""Reference of index_write in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from ..shared import wide


def index_write(
    q: Tensor,
    k: Tensor,
    scale: Tensor,
    bias: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    interleaved: bool = False,
    at_end: bool = False,
) -> None:
    """See the public function."""
    size, block_tokens = k.shape[1], kv_cache.shape[3]
    angles = cos_sin.index_select(0, positions).to(wide(q[:0]).dtype)
    keys = layer_norm(wide(k), (size,), wide(scale).to(wide(k).dtype), None, eps) + wide(bias)
    turning = slice(size - angles.shape[1] if at_end else 0, None)
    _rotate(keys[:, turning], angles, interleaved)
    _rotate(q[..., turning], angles[:, None], interleaved)
    written = slot_mapping >= 0
    slots = slot_mapping[written].long()
    rows = keys[written].to(kv_cache.dtype)
    kv_cache[slots // block_tokens, 0, 0, slots % block_tokens, -size:] = rows


def _rotate(x: Tensor, angles: Tensor, interleaved: bool) -> None:
    """Rotates the first R of x [..., D] in place by angles [..., R], cosines then sines."""
    half = angles.shape[-1] // 2
    cos, sin = angles.chunk(2, dim=-1)
    step, last = (2, 2 * half) if interleaved else (1, half)
    first = slice(0, last, step)
    second = slice(1 if interleaved else half, 2 * half, step)
    a, b = wide(x[..., first]), wide(x[..., second])
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin)).to(x.dtype)
    x[..., first], x[..., second] = turned
