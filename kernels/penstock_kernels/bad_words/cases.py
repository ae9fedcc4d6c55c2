"""Cases of bad_words."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, Case, Size
from . import ANY

SLOTS = 40


def _case(size: Size, kind: str, rows: int, vocab: int, shape: tuple[int, int]) -> Case:
    """Few different tokens, so that many words match; a third of the slots have no words."""
    dtype, (most, length) = DTYPES[kind], shape

    def make(device: torch.device) -> dict[str, Any]:
        def draw(*sizes: int) -> torch.Tensor:
            return torch.randint(0, 2, sizes, device=device)

        tokens = torch.randint(2, length + 1, (SLOTS, most, 1), device=device)
        place = torch.arange(length, device=device)
        words = draw(SLOTS, most, length)
        words[..., -1] = torch.randint(0, vocab, (SLOTS, most), device=device)
        counts = torch.randint(0, most + 1, (SLOTS,), device=device)
        counts[::3] = 0
        recent = draw(SLOTS, length - 2)
        recent[::4, : length // 2] = ANY  # a sequence that has just begun
        return {
            "logits": torch.randn((rows, vocab + 3), device=device).to(dtype)[:, :vocab],
            "slots": torch.randperm(SLOTS, device=device)[:rows],
            "previous": draw(rows),
            "counts": counts,
            "words": torch.where(place < length - tokens, ANY, words).int(),
            "recent": recent.int(),
        }

    return Case(f"{kind}-{rows}x{vocab}-{most}x{length}", size, make, 0.0)


CASES = [
    *(_case(Size.SMALL, kind, 7, 100, (5, 4)) for kind in DTYPES),
    _case(Size.SMALL, "f32", 9, 61, (1, 3)),
    _case(Size.SMALL, "f32", 9, 61, (130, 5)),
    _case(Size.SMALL, "f32", 0, 61, (4, 3)),
    _case(Size.FULL, "f32", 33, 32_003, (256, 16)),
    _case(Size.BENCH, "f32", 32, 128_256, (256, 16)),
]
