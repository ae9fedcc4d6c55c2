"""Cases of sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..case import DTYPES, Case, Size


class Choice(NamedTuple):
    """Sampling parameters of a row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0


GREEDY = Choice(0.0)
MIXED = [
    GREEDY,
    Choice(),
    Choice(0.7),
    Choice(1.0, 1),
    Choice(1.5, 5),
    Choice(1.0, 0, 0.9),
    Choice(0.8, 50, 0.95),
    Choice(5.0, 0, 0.3),
    Choice(1.0, 0, 1e-6),
    Choice(1e-4),
    Choice(1.0, 1 << 30, 0.5),
]
TOP = Choice(0.8, 50, 0.95)
# What lists settle, and what only the whole row does.
MIN_P_TYPICAL_P = [
    Choice(),
    Choice(min_p=0.1),
    Choice(0.7, 50, 0.95, 0.02),
    Choice(1.0, min_p=1.0),
    Choice(typical_p=0.5),
    Choice(1.5, 0, 0.98, 0.001, 0.9),
    Choice(0.8, typical_p=0.99),
    Choice(1e-4, min_p=0.3, typical_p=0.2),
    GREEDY,
]
ALL = Choice(0.8, 50, 0.95, 0.01, 0.9)
TYPICAL = Choice(0.8, typical_p=0.9)
NEARLY_ALL = [Choice(1.0, 3000, 0.9999999), Choice(1.0, 50, 1 - 2**-22)]
LANES = [Choice(1.0, 400), Choice(1.0, 9000, 0.99), Choice(0.5, 0, 0.5), Choice(3.0, 0, 0.97)]


def _case(size: Size, kind: str, vocabulary: int, choices: Sequence[Choice], title: str) -> Case:
    dtype = DTYPES[kind]
    rows = len(choices)

    def make(device: torch.device) -> dict[str, Any]:
        logits = 3 * torch.randn(rows, vocabulary + 5, device=device)
        logits[:, ::7] = -torch.inf
        logits[:, 3:10] = logits[:, 2:3]  # ties
        # Rows take the slots in another order, and a slot more than there are rows has none.
        slots = torch.randperm(rows + 1, device=device)[:rows]
        by_slot = [GREEDY] * (rows + 1)
        for slot, choice in zip(slots.tolist(), choices, strict=True):
            by_slot[slot] = choice
        columns = map(torch.tensor, zip(*by_slot, strict=True))
        temperature, top_k, top_p, min_p, typical_p = columns
        min_p_typical_p = {"min_p": min_p, "typical_p": typical_p}
        has_min_p = any(choice[3:] != GREEDY[3:] for choice in choices)
        return {
            "logits": logits.to(dtype)[:, :vocabulary],
            "slots": slots,
            "temperature": temperature.to(device, torch.float32),
            "top_k": top_k.to(device, torch.int32),
            "top_p": top_p.to(device, torch.float32),
            "seed": torch.randint(-(1 << 62), 1 << 62, (rows + 1,), device=device),
            "position": torch.randint(0, 1 << 40, (rows,), device=device),
            **{n: p.to(device, torch.float32) for n, p in min_p_typical_p.items() if has_min_p},
        }

    moved = rows * vocabulary * dtype.itemsize
    # Log-probabilities are differences of numbers up to 10 in float32.
    return Case(f"{kind}-{rows}x{vocabulary}-{title}", size, make, 1e-5, bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 301, MIXED, "mixed") for kind in DTYPES),
    _case(Size.SMALL, "f32", 4099, [GREEDY, Choice(), TOP], "tiles"),
    _case(Size.SMALL, "f32", 12_301, [Choice(), Choice(1e-4), Choice(9.0), Choice(0.3)], "tiles"),
    _case(Size.SMALL, "f32", 11, [GREEDY] * 3, "greedy"),
    _case(Size.SMALL, "f32", 26_003, [TOP, *LANES], "lanes"),
    _case(Size.SMALL, "bf16", 17_000, LANES, "lanes"),
    *(_case(Size.SMALL, kind, 9001, NEARLY_ALL, "nearly-all") for kind in ("f32", "bf16")),
    *(_case(Size.SMALL, kind, 301, MIN_P_TYPICAL_P, "min-p-typical-p") for kind in DTYPES),
    _case(Size.SMALL, "f32", 26_003, [ALL, Choice(2.0, typical_p=0.97)], "min-p-typical-p"),
    *(_case(Size.FULL, kind, 32_003, MIN_P_TYPICAL_P * 11, "min-p-typical-p") for kind in DTYPES),
    *(_case(Size.FULL, kind, 32_003, MIXED * 11, "mixed") for kind in DTYPES),
    _case(Size.FULL, "bf16", 151_936, MIXED, "mixed"),
    _case(Size.BENCH, "bf16", 128_256, [GREEDY] * 256, "greedy"),
    _case(Size.BENCH, "bf16", 128_256, [Choice(0.8)] * 256, "random"),
    _case(Size.BENCH, "bf16", 128_256, [TOP] * 256, "top-k-p"),
    _case(Size.BENCH, "bf16", 128_256, [TOP], "top-k-p"),
    _case(Size.BENCH, "bf16", 128_256, [GREEDY], "greedy"),
    _case(Size.BENCH, "bf16", 128_256, [GREEDY] * 32, "greedy"),
    _case(Size.BENCH, "bf16", 128_256, [Choice(0.8)] * 32, "random"),
    _case(Size.BENCH, "bf16", 128_256, [TOP] * 32, "top-k-p"),
    *(_case(Size.BENCH, "f32", 128_256, [ALL] * rows, "all") for rows in (32, 256)),
    *(_case(Size.BENCH, "f32", 128_256, [TYPICAL] * rows, "typical") for rows in (32, 256)),
    _case(Size.BENCH, "f32", 128_256, [Choice(2.0, 0, 0.97)] * 32, "top-p-flat"),
    _case(Size.BENCH, "bf16", 128_256, [Choice(0.4, 0, 0.9)] * 256, "top-p"),
    _case(Size.BENCH, "bf16", 128_256, [GREEDY, Choice(0.8), TOP, GREEDY] * 64, "mixed"),
]
