"""Cases of process_logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..case import DTYPES, Case, Size
from . import GENERATED, PROMPT, LogitsProcessorParams

SLOTS = 9
MOST_BIASES = 40


class SlotParams(NamedTuple):
    """The logits processors of one slot."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    biases: int = 0
    restricted: bool = False
    gamma: float = 0.5
    delta: float = 0.0


NONE = SlotParams()
PENALTIES = SlotParams(1.3, 0.7, -0.4)
EVERYTHING = SlotParams(0.8, -0.5, 1.5, 40, True, 0.25, 2.5)
SMALL = [
    NONE,
    SlotParams(1.3),
    SlotParams(0.5, presence=0.5),
    PENALTIES,
    SlotParams(biases=7),
    SlotParams(restricted=True),
    SlotParams(delta=2.0),
    EVERYTHING,
]


def random_params(
    slot_params: Sequence[SlotParams], vocabulary: int, device: torch.device
) -> LogitsProcessorParams:
    """Random parameters: slot i has those of slot_params[i % len(slot_params)]."""
    per_slot = [slot_params[slot % len(slot_params)] for slot in range(SLOTS)]
    counts = torch.randint(0, 4, (SLOTS, vocabulary), device=device)
    counts |= torch.randint(0, 2, (SLOTS, vocabulary), device=device) * PROMPT
    counts[:, ::5] = 0
    counts[:, 11 % vocabulary] = PROMPT | GENERATED
    ids = torch.stack([torch.randperm(vocabulary)[:MOST_BIASES] for _ in per_slot])
    words = [
        [w.biases, int(w.restricted), int(w.gamma * 2**32), 15485863 + i]
        for i, w in enumerate(per_slot)
    ]
    bits = (SLOTS, -(-vocabulary // 32))
    return LogitsProcessorParams(
        counts.short(),
        torch.tensor([[w.repetition, w.frequency, w.presence, w.delta] for w in per_slot]).to(
            device
        ),
        torch.tensor(words).to(device),
        ids.int().to(device),
        20 * torch.randn(SLOTS, MOST_BIASES, device=device),
        torch.randint(-(1 << 31), 1 << 31, bits, device=device).int(),
    )


def _case(
    size: Size, kind: str, rows: int, vocabulary: int, slot_params: Sequence[SlotParams]
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        logits = 3 * torch.randn(rows, vocabulary + 5, device=device)
        logits[:, ::7] = -torch.inf
        return {
            "logits": logits.to(dtype)[:, :vocabulary],
            "slots": torch.randint(0, SLOTS, (rows,), device=device),
            "previous": torch.randint(0, vocabulary, (rows,), device=device),
            "params": random_params(slot_params, vocabulary, device),
        }

    name = f"{kind}-{rows}x{vocabulary}-{len(slot_params)}"
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
