"""Cases of apply_mask."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, Case, Size


def _case(size: Size, kind: str, rows: int, masked: int, vocab: int) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        words = -(-vocab // 32)
        mask = torch.randint(-(1 << 31), 1 << 31, (masked, words), device=device)
        mask[: masked // 3] = 0  # nothing, and everything, allowed
        mask[masked // 3 : masked // 2] = -1
        return {
            "logits": torch.randn((rows, vocab), device=device, dtype=dtype),
            "rows": torch.randperm(rows, device=device)[:masked].int(),
            "mask": mask.int(),
        }

    name = f"{kind}-{masked}of{rows}x{vocab}"
    moved = masked * vocab * (dtype.itemsize // 2) + masked * vocab // 8
    return Case(name, size, make, 0.0, bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 5, 3, 100) for kind in DTYPES),
    _case(Size.SMALL, "f32", 4, 4, 64),
    _case(Size.SMALL, "f32", 2, 0, 31),
    _case(Size.SMALL, "bf16", 7, 6, 5003),
    _case(Size.FULL, "bf16", 33, 32, 128_256),
    _case(Size.BENCH, "bf16", 32, 32, 128_256),
]
