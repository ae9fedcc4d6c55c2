"""Cases of token_logprobs."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, Case, Size


def _case(size: Size, kind: str, rows: int, vocabulary: int) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        logits = 3 * torch.randn(rows, vocabulary + 5, device=device)
        logits[:, ::7] = -torch.inf
        logits[2:3] = -torch.inf
        logits[3:4, 40] = torch.nan
        ids = torch.randint(0, vocabulary // 7, (rows,), device=device) * 7 + 1
        return {"logits": logits.to(dtype)[:, :vocabulary], "ids": ids}

    # Log-probabilities are differences of numbers up to 10 in float32.
    moved = rows * vocabulary * dtype.itemsize
    return Case(f"{kind}-{rows}x{vocabulary}", size, make, 1e-5, bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 5, 301) for kind in DTYPES),
    _case(Size.SMALL, "f32", 2, 17_003),
    _case(Size.SMALL, "f32", 0, 301),
    *(_case(Size.FULL, kind, 67, 32_003) for kind in DTYPES),
    _case(Size.BENCH, "bf16", 32, 128_256),
    _case(Size.BENCH, "bf16", 256, 128_256),
]
