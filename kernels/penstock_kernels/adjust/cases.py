"""Cases of adjust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..case import DTYPES, Case, Size
from . import GENERATED, PROMPT, Rules

SLOTS = 9
MOST_BIASES = 40


class Wish(NamedTuple):
    """What one slot asks."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    biases: int = 0
    restricted: bool = False
    gamma: float = 0.5
    delta: float = 0.0


NONE = Wish()
PENALTIES = Wish(1.3, 0.7, -0.4)
EVERYTHING = Wish(0.8, -0.5, 1.5, 40, True, 0.25, 2.5)
SMALL = [
    NONE,
    Wish(1.3),
    Wish(0.5, presence=0.5),
    PENALTIES,
    Wish(biases=7),
    Wish(restricted=True),
    Wish(delta=2.0),
    EVERYTHING,
]


def rules(wishes: Sequence[Wish], vocabulary: int, device: torch.device) -> Rules:
    """Random rules: slot i asks wishes[i % len(wishes)]."""
    asked = [wishes[slot % len(wishes)] for slot in range(SLOTS)]
    counts = torch.randint(0, 4, (SLOTS, vocabulary), device=device)
    counts |= torch.randint(0, 2, (SLOTS, vocabulary), device=device) * PROMPT
    counts[:, ::5] = 0
    counts[:, 11 % vocabulary] = PROMPT | GENERATED
    ids = torch.stack([torch.randperm(vocabulary)[:MOST_BIASES] for _ in asked])
    words = [
        [w.biases, int(w.restricted), int(w.gamma * 2**32), 15485863 + i]
        for i, w in enumerate(asked)
    ]
    bits = (SLOTS, -(-vocabulary // 32))
    return Rules(
        counts.short(),
        torch.tensor([[w.repetition, w.frequency, w.presence, w.delta] for w in asked]).to(device),
        torch.tensor(words).to(device),
        ids.int().to(device),
        20 * torch.randn(SLOTS, MOST_BIASES, device=device),
        torch.randint(-(1 << 31), 1 << 31, bits, device=device).int(),
    )


def _case(size: Size, kind: str, rows: int, vocabulary: int, wishes: Sequence[Wish]) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        logits = 3 * torch.randn(rows, vocabulary + 5, device=device)
        logits[:, ::7] = -torch.inf
        return {
            "logits": logits.to(dtype)[:, :vocabulary],
            "slots": torch.randint(0, SLOTS, (rows,), device=device),
            "previous": torch.randint(0, vocabulary, (rows,), device=device),
            "rules": rules(wishes, vocabulary, device),
        }

    name = f"{kind}-{rows}x{vocabulary}-{len(wishes)}"
    moved = rows * vocabulary * (dtype.itemsize + 6)
    return Case(name, size, make, 1e-6, bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 12, 301, SMALL) for kind in DTYPES),
    _case(Size.SMALL, "f32", 3, 4127, [EVERYTHING]),
    _case(Size.SMALL, "f32", 0, 301, SMALL),
    *(_case(Size.FULL, kind, 33, 32_003, SMALL) for kind in DTYPES),
    _case(Size.BENCH, "bf16", 32, 128_256, [PENALTIES]),
    _case(Size.BENCH, "bf16", 256, 128_256, [EVERYTHING]),
]
