"""Cases of latent_kv_write."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Latent, Size

MAX_POSITION = 4096
BLOCK_TOKENS = 16


def write_arguments(
    shape: Latent, tokens: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    """Random tensors for tokens at random places of the cache."""
    heads, rank, rotated, still = shape.heads, shape.rank, shape.rotated, shape.rank // 4
    blocks = tokens // BLOCK_TOKENS + 3

    def floats(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    angles = torch.rand(MAX_POSITION, rotated // 2, device=device) * 6.3
    return {
        "q": floats(tokens, heads, still + rotated)[..., still:],
        "kv": floats(tokens, 5 + rank + rotated)[:, 5:],
        "scale": floats(rank),
        "eps": 1e-6,
        "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=1),
        "positions": torch.randint(0, MAX_POSITION, (tokens,), device=device).int(),
        "slot_mapping": torch.randperm(blocks * BLOCK_TOKENS, device=device)[:tokens].int(),
        "kv_cache": floats(blocks, 1, 1, BLOCK_TOKENS, shape.row),
        "out": floats(tokens, heads, rank + rotated),
    }


def _case(
    size: Size, kind: str, tokens: int, shape: Latent, interleaved: bool, skipped: int = 0
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        arguments = write_arguments(shape, tokens, dtype, device)
        arguments["slot_mapping"][torch.randperm(tokens, device=device)[:skipped]] = -1
        return {**arguments, "interleaved": interleaved}

    pairs = "neighbours" if interleaved else "halves"
    rank, rotated = shape.rank, shape.rotated
    name = f"{kind}-{tokens}x{shape.heads}x{rank}+{rotated}-{pairs}-skip{skipped}"
    name += f"-in{shape.row}" if shape.more else ""
    moved = 2 * (shape.heads * rotated + rank + rotated) * dtype.itemsize + 4 * rotated
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=tokens * moved)


TINY, LITE, V3 = Latent(3, 40, 12), Latent(16, 512, 64), Latent(128, 512, 64)

CASES = [
    *(_case(Size.SMALL, kind, 5, TINY, pairs, 2) for kind in DTYPES for pairs in (False, True)),
    _case(Size.SMALL, "f32", 3, Latent(1, 32, 8), True),
    _case(Size.SMALL, "f32", 2, TINY, True, 2),
    _case(Size.SMALL, "f32", 3, Latent(3, 40, 12, 20), True, 1),
    _case(Size.SMALL, "f32", 0, TINY, True),
    _case(Size.SMALL, "f32", 5, Latent(3, 40, 0, 20), False, 1),
    *(_case(Size.FULL, kind, 517, LITE, True, 5) for kind in DTYPES),
    _case(Size.FULL, "bf16", 131, Latent(20, 512, 64), False, 3),
    _case(Size.FULL, "bf16", 33, V3, True),
    _case(Size.FULL, "bf16", 33, Latent(128, 512, 64, 128), True),
    _case(Size.FULL, "bf16", 33, Latent(64, 512, 0, 256), False),
    _case(Size.FULL, "bf16", 33, Latent(64, 1024, 64), True),
    _case(Size.BENCH, "bf16", 32, LITE, True),
    _case(Size.BENCH, "bf16", 8192, LITE, True),
    _case(Size.BENCH, "bf16", 256, V3, True),
]
