"""Cases of copy_blocks."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, Case, Size


def _case(
    size: Size, kind: str, copies: int, shape: tuple[int, ...], index: torch.dtype = torch.int32
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        cache = torch.randn(shape, device=device, dtype=dtype)
        # Sources may repeat; destinations are the last blocks, where 64-bit offsets matter.
        sources = torch.randint(0, shape[0] - copies, (copies,), device=device, dtype=index)
        places = torch.randperm(copies, device=device).to(index)
        return {
            "kv_cache": cache,
            "sources": sources,
            "destinations": places + (shape[0] - copies),
        }

    name = f"{kind}-{copies}of{'x'.join(map(str, shape))}-{str(index)[6:]}"
    moved = 2 * copies * torch.Size(shape[1:]).numel() * dtype.itemsize
    return Case(name, size, make, 0.0, bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 3, (9, 2, 3, 4, 8)) for kind in DTYPES),
    _case(Size.SMALL, "f32", 2, (7, 2, 1, 5, 6), torch.int64),
    _case(Size.SMALL, "f32", 0, (4, 2, 1, 4, 8)),
    _case(Size.FULL, "bf16", 17, (99, 2, 3, 7, 96)),
    _case(Size.FULL, "bf16", 5, (70_000, 2, 8, 16, 128)),
    _case(Size.BENCH, "bf16", 2048, (8192, 2, 8, 16, 128)),
]
