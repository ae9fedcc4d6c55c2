"""Reference of rope_kv_write in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kv_quantization import Rows
from ..shared import wide


def rope_kv_write(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    start: Tensor | None = None,
    kv_params: Tensor | None = None,
) -> None:
    """See the public function."""
    if start is not None and int(start[0]):
        rows = slice(int(start[0]), None)
        q, positions, slot_mapping = q[rows], positions[rows], slot_mapping[rows]
        k, v = None if k is None else k[rows], None if v is None else v[rows]
    angles = cos_sin.index_select(0, positions).to(wide(q[:0]).dtype)
    cos, sin = angles[:, None].chunk(2, dim=-1)
    if k is None or v is None:
        q.copy_(_rotate(wide(q), cos, sin))
        return
    rotated = _rotate(wide(torch.cat((q, k), dim=1)), cos, sin)
    q.copy_(rotated[:, : q.shape[1]])
    kv = torch.stack((rotated[:, q.shape[1] :], wide(v)), dim=1)
    if bool((slot_mapping < 0).any()):
        written = slot_mapping >= 0
        slot_mapping, kv = slot_mapping[written], kv[written]
    Rows(kv_cache, kv_params, q.shape[2]).write(slot_mapping.long(), kv)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, D] by cos and sin [T, 1, D/2]; a new tensor."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat(
        (torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)), dim=-1
    )
