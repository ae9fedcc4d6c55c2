"""Cases of latent_kv_write."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Latent, Size

MAX_POSITION = 4096
BLOCK_TOKENS = 16


def _case(
    size: Size, kind: str, tokens: int, shape: Latent, interleaved: bool, skipped: int = 0
) -> Case:
    dtype = DTYPES[kind]
    heads, rank, rotated, nope = shape.heads, shape.rank, shape.rotated, shape.rank // 4

    def make(device: torch.device) -> dict[str, Any]:
        def floats(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, device=device, dtype=dtype)

        angles = torch.rand(MAX_POSITION, rotated // 2, device=device) * 6.3
        blocks = tokens // BLOCK_TOKENS + 3
        slots = torch.randperm(blocks * BLOCK_TOKENS, device=device)[:tokens].int()
        slots[torch.randperm(tokens, device=device)[:skipped]] = -1
        return {
            "q": floats(tokens, heads, nope + rotated)[..., nope:],
            "kv": floats(tokens, 5 + rank + rotated)[:, 5:],
            "scale": floats(rank),
            "eps": 1e-6,
            "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=1),
            "positions": torch.randint(0, MAX_POSITION, (tokens,), device=device).int(),
            "slot_mapping": slots,
            "kv_cache": floats(blocks, 1, 1, BLOCK_TOKENS, rank + rotated),
            "out": floats(tokens, heads, rank + rotated),
            "interleaved": interleaved,
        }

    pairs = "neighbours" if interleaved else "halves"
    name = f"{kind}-{tokens}x{heads}x{rank}+{rotated}-{pairs}-skip{skipped}"
    moved = tokens * (2 * (heads * rotated + rank + rotated) * dtype.itemsize + 4 * rotated)
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


TINY, LITE, V3 = Latent(3, 40, 12), Latent(16, 512, 64), Latent(128, 512, 64)

CASES = [
    *(_case(Size.SMALL, kind, 5, TINY, pairs, 2) for kind in DTYPES for pairs in (False, True)),
    _case(Size.SMALL, "f32", 3, Latent(1, 32, 8), True),
    _case(Size.SMALL, "f32", 2, TINY, True, 2),
    _case(Size.SMALL, "f32", 0, TINY, True),
    *(_case(Size.FULL, kind, 517, LITE, True, 5) for kind in DTYPES),
    _case(Size.FULL, "bf16", 131, Latent(20, 512, 64), False, 3),
    _case(Size.FULL, "bf16", 33, V3, True),
    _case(Size.BENCH, "bf16", 32, LITE, True),
    _case(Size.BENCH, "bf16", 8192, LITE, True),
    _case(Size.BENCH, "bf16", 256, V3, True),
]
