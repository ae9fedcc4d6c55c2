"""Cases of sinkhorn."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, Size


def _case(size: Size, tokens: int, streams: int, rounds: int, eps: float = 1e-6) -> Case:
    def make(device: torch.device) -> dict[str, Any]:
        logits = 2 * torch.randn(tokens, streams, streams, device=device)
        return {"logits": logits, "rounds": rounds, "eps": eps}

    name = f"f32-{tokens}x{streams}-{rounds}rounds-{eps:g}"
    moved = 8 * tokens * streams**2
    return Case(name, size, make, 5e-6, bytes_moved=moved)


CASES = [
    _case(Size.SMALL, 5, 4, 20),
    _case(Size.SMALL, 70, 3, 4, 0.02),
    _case(Size.SMALL, 3, 1, 2),
    _case(Size.SMALL, 2, 5, 1, 0.0),
    _case(Size.SMALL, 0, 4, 20),
    _case(Size.FULL, 517, 4, 20),
    _case(Size.FULL, 33, 8, 20),
    _case(Size.BENCH, 1, 4, 20),
    _case(Size.BENCH, 256, 4, 20),
    _case(Size.BENCH, 8192, 4, 20),
]
