"""Cases of index_pool."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size

BLOCK_TOKENS = 16


def pool_arguments(
    tokens: int, size: int, pool: int, row: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    """Random tensors for tokens that follow each other, in blocks of the cache in any order."""
    blocks = tokens // BLOCK_TOKENS + 3

    def floats(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    places = torch.randperm(blocks, device=device)[:, None] * BLOCK_TOKENS
    slots = (places + torch.arange(BLOCK_TOKENS, device=device)).flatten()
    return {
        "k": floats(tokens, 5 + size)[:, 5:],
        "gates": 2 * floats(tokens, size),
        "scale": floats(size),
        "bias": floats(size),
        "eps": 1e-6,
        "offsets": floats(pool, size),
        "slot_mapping": slots[3 : 3 + tokens].int(),
        "kv_cache": floats(blocks, 1, 1, BLOCK_TOKENS, row),
    }


def _case(
    size: Size, kind: str, tokens: int, columns: int, pool: int, row: int, skipped: int = 0
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        arguments = pool_arguments(tokens, columns, pool, row, dtype, device)
        arguments["slot_mapping"][tokens - skipped :] = -1
        return arguments

    name = f"{kind}-{tokens}x{columns}in{row}-pool{pool}-skip{skipped}"
    moved = tokens * 6 * columns * dtype.itemsize
    # A pool's key is a sum of keys that are rounded.
    return Case(name, size, make, 2 * TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 40, 12, 4, 60, 2) for kind in DTYPES),
    _case(Size.SMALL, "f32", 33, 8, 16, 16),
    _case(Size.SMALL, "f32", 9, 20, 1, 50),
    _case(Size.SMALL, "f32", 2, 8, 2, 20, 2),
    _case(Size.SMALL, "f32", 0, 8, 4, 20),
    *(_case(Size.FULL, kind, 517, 128, 16, 768, 5) for kind in DTYPES),
    _case(Size.BENCH, "bf16", 32, 128, 16, 768),
    _case(Size.BENCH, "bf16", 8192, 128, 16, 768),
]
