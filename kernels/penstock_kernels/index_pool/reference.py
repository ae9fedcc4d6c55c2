"""Reference of index_pool in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from ..shared import wide


def index_pool(
    k: Tensor,
    gates: Tensor,
    scale: Tensor,
    bias: Tensor,
    eps: float,
    offsets: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
) -> None:
    """See the public function."""
    size, pool = k.shape[1], len(offsets)
    keys = layer_norm(wide(k), (size,), wide(scale).to(wide(k).dtype), None, eps) + wide(bias)
    rows = kv_cache.view(-1, kv_cache.shape[4])[:, -2 * size :]
    written = slot_mapping >= 0
    slots = slot_mapping[written].long()
    rows[slots] = torch.cat((gates, keys.to(k.dtype)), 1)[written]
    last = slots[slots % pool == pool - 1]
    members = rows[last[:, None] + torch.arange(1 - pool, 1, device=k.device)]
    logits, values = wide(members).split(size, 2)
    weights = (logits + wide(offsets)).softmax(1)
    rows[last, size:] = (weights * values).sum(1).to(k.dtype)
