"""Cases of index_write."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Index, Size

MAX_POSITION = 4096
BLOCK_TOKENS = 16


def write_arguments(
    shape: Index, tokens: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    """Random tensors for tokens at random places of the cache."""
    heads, size, blocks = shape.heads, shape.size, tokens // BLOCK_TOKENS + 3

    def floats(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    angles = torch.rand(MAX_POSITION, shape.rotated // 2, device=device) * 6.3
    return {
        "q": floats(tokens, heads, size),
        "k": floats(tokens, 5 + size)[:, 5:],
        "scale": floats(size),
        "bias": floats(size),
        "eps": 1e-6,
        "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=1),
        "positions": torch.randint(0, MAX_POSITION, (tokens,), device=device).int(),
        "slot_mapping": torch.randperm(blocks * BLOCK_TOKENS, device=device)[:tokens].int(),
        "kv_cache": floats(blocks, 1, 1, BLOCK_TOKENS, shape.row),
    }


def _case(
    size: Size,
    kind: str,
    tokens: int,
    shape: Index,
    interleaved: bool,
    skipped: int = 0,
    at_end: bool = False,
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        arguments = write_arguments(shape, tokens, dtype, device)
        arguments["slot_mapping"][torch.randperm(tokens, device=device)[:skipped]] = -1
        return {**arguments, "interleaved": interleaved, "at_end": at_end}

    pairs = "neighbours" if interleaved else "halves"
    name = f"{kind}-{tokens}x{shape.heads}x{shape.rotated}of{shape.size}in{shape.row}-{pairs}"
    name += f"-skip{skipped}{'-end' if at_end else ''}"
    moved = 2 * (shape.heads * shape.rotated + shape.size) * dtype.itemsize + 4 * shape.rotated
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=tokens * moved)


TINY, V32, GLM5 = Index(3, 40, 12, 60), Index(64, 128, 64, 704), Index(32, 128, 64, 704)
HY4 = Index(16, 128, 64, 704)

CASES = [
    *(_case(Size.SMALL, kind, 5, TINY, pairs, 2) for kind in DTYPES for pairs in (False, True)),
    *(_case(Size.SMALL, "f32", 5, TINY, pairs, 2, at_end=True) for pairs in (False, True)),
    _case(Size.SMALL, "f32", 3, Index(1, 8, 8, 8), True),
    _case(Size.SMALL, "f32", 2, TINY, False, 2),
    _case(Size.SMALL, "f32", 0, TINY, False),
    *(_case(Size.FULL, kind, 517, V32, False, 5) for kind in DTYPES),
    _case(Size.FULL, "bf16", 131, GLM5, True, 3),
    _case(Size.FULL, "bf16", 131, HY4, False, 3, at_end=True),
    _case(Size.BENCH, "bf16", 32, V32, False),
    _case(Size.BENCH, "bf16", 8192, GLM5, True),
]
