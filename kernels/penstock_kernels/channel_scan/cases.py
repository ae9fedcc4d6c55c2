"""Cases of channel_scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size, runs

DECODES = [(1, 1), (1, 2), (1, 9), (1, 300)]
CHUNKS = [(5, 5), (1, 4), (2, 90), (40, 140), (1, 1), (23, 23)]


@dataclass(frozen=True)
class Layer:
    """Shape of a Mamba-1 layer."""

    channels: int
    state: int
    step_rank: int
    """Elements that stand before b and c in the projection they are parts of."""
    heads: int = 1


TINY, UNEVEN = Layer(64, 16, 8), Layer(75, 11, 5)
JAMBA = Layer(8192, 16, 256)  # Jamba 1.7 Mini
SMALL = Layer(5120, 16, 160)  # Jamba Reasoning 3B
ZAMBA = Layer(7424, 16, 232, heads=2)  # Zamba 7B


def _case(
    size: Size,
    kind: str,
    lengths: list[tuple[int, int]],
    layer: Layer,
    pad: int = 0,
    *,
    fused: bool = False,
) -> Case:
    """`fused`: x, steps and gates are columns of wider tensors, too."""
    dtype = DTYPES[kind]
    tokens = sum(n for n, _ in lengths)
    decodes = all(n == 1 for n, _ in lengths)
    rows = tokens + pad * decodes
    count, stored, heads = layer.channels, layer.state, layer.heads
    beside = 8 if fused else 0

    def make(device: torch.device) -> dict[str, Any]:
        width = layer.step_rank + 2 * stored
        mixed = torch.randn(rows, heads, width, device=device, dtype=dtype)
        _, b, c = mixed.split([layer.step_rank, stored, stored], 2)
        both = torch.randn(3, rows, beside + count, device=device, dtype=dtype)
        x, step, gate = both[..., beside:]
        decay = 15 * torch.rand(count, stored, device=device) + 1
        bias, skip = torch.rand(2, count, device=device)
        states = torch.randn(len(lengths) + 2, 1, 1, stored, count, device=device)
        return {
            "x": x,
            "b": b,
            "c": c,
            "step": step,
            "gate": gate,
            "channels": (decay.log(), bias - 3, skip),
            "states": states,
            "runs": runs(lengths, device, pad=pad),
        }

    numbers = 4 * count + 2 * heads * stored
    moved = tokens * numbers * dtype.itemsize + 8 * len(lengths) * count * stored
    more = f"-heads{heads}" * (heads > 1) + f"-pad{pad}" * bool(pad) + "-fused" * fused
    name = f"{kind}-{len(lengths)}of{tokens}x{count}x{stored}{more}"
    # States of long runs add up errors of float32.
    tolerance = max(TOLERANCE[dtype], 1e-5)
    return Case(name, size, make, tolerance, bytes_moved=moved if decodes else 0)


CASES = [
    *(_case(Size.SMALL, kind, DECODES, TINY, pad=2) for kind in DTYPES),
    *(_case(Size.SMALL, kind, CHUNKS, TINY, pad=1) for kind in DTYPES),
    _case(Size.SMALL, "f32", DECODES, UNEVEN, fused=True),
    _case(Size.SMALL, "f32", CHUNKS, UNEVEN, fused=True),
    _case(Size.SMALL, "f16", [(3, 3), (1, 9), (33, 40)], UNEVEN, pad=1),
    _case(Size.SMALL, "bf16", [(9, 12)], Layer(130, 20, 3), fused=True),
    _case(Size.SMALL, "f32", [(8, 8), (17, 40)], Layer(7, 1, 1)),
    _case(Size.SMALL, "f32", DECODES, Layer(80, 16, 8, heads=2), pad=2),
    _case(Size.SMALL, "f32", CHUNKS, Layer(111, 11, 5, heads=3), fused=True),
    _case(Size.FULL, "bf16", [(1, 700)] * 70, JAMBA),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], JAMBA),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], ZAMBA),
    _case(Size.FULL, "bf16", [(1, 700)] * 70, ZAMBA),
    _case(Size.FULL, "f16", CHUNKS, SMALL),
    _case(Size.FULL, "f32", CHUNKS, SMALL),
    _case(Size.BENCH, "bf16", [(1, 700)], JAMBA),
    _case(Size.BENCH, "bf16", [(1, 700)] * 64, JAMBA),
    _case(Size.BENCH, "bf16", [(1, 700)] * 256, SMALL),
    _case(Size.BENCH, "bf16", [(8192, 8192)], JAMBA),
    _case(Size.BENCH, "bf16", [(2048, 2048)] * 4, JAMBA),
]
