"""Cases of head_norm."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Heads, Size


def _case(
    size: Size, kind: str, tokens: int, heads: Heads, wide: bool = False, alone: bool = False
) -> Case:
    """With `wide`, the weights are float32; `alone`: there are queries and no keys."""
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        # Heads of values behind the keys, as a fused projection has them.
        count = heads.query + 2 * heads.kv
        fused = torch.randn(tokens, count, heads.size, device=device, dtype=dtype)
        q, k, _ = torch.split(fused, [heads.query, heads.kv, heads.kv], dim=1)
        weights = torch.randn(2, heads.size, device=device, dtype=torch.float32 if wide else dtype)
        k = k[:, :0] if alone else k
        return {"q": q, "k": k, "q_weight": weights[0], "k_weight": weights[1], "eps": 1e-6}

    shape = f"{heads.query}:{heads.kv}x{heads.size}"
    moved = 2 * tokens * (heads.query + heads.kv) * heads.size * dtype.itemsize
    name = f"{kind}-{tokens}x{shape}{'-wide' if wide else ''}{'-alone' if alone else ''}"
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


QWEN3_8B = Heads(32, 8, 128, 16)

CASES = [
    *(_case(Size.SMALL, kind, 3, Heads(6, 2, 32, 4)) for kind in DTYPES),
    _case(Size.SMALL, "f16", 2, Heads(5, 1, 96, 4), wide=True),
    _case(Size.SMALL, "f32", 1, Heads(1, 1, 40, 4)),
    _case(Size.SMALL, "f32", 0, Heads(2, 2, 64, 4)),
    _case(Size.SMALL, "f32", 3, Heads(6, 2, 512, 4), alone=True),
    _case(Size.FULL, "bf16", 70, Heads(16, 2, 512, 16)),
    _case(Size.FULL, "bf16", 70, Heads(16, 2, 512, 16), alone=True),
    *(_case(Size.FULL, kind, 333, Heads(12, 3, 128, 16)) for kind in DTYPES),
    _case(Size.FULL, "bf16", 70, Heads(8, 4, 256, 16), wide=True),
    _case(Size.FULL, "bf16", 1, Heads(96, 8, 128, 16)),
    _case(Size.BENCH, "bf16", 1, QWEN3_8B),
    _case(Size.BENCH, "bf16", 256, QWEN3_8B),
    _case(Size.BENCH, "bf16", 8192, QWEN3_8B),
]
