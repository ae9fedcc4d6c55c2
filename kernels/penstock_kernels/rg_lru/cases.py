"""Cases of rg_lru."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size, runs

DECODES = [(1, 1), (1, 2), (1, 9), (1, 300)]
CHUNKS = [(5, 5), (1, 4), (2, 90), (70, 140), (1, 1), (23, 23)]


@dataclass(frozen=True)
class Layer:
    """Shape of a layer: blocks of channels."""

    blocks: int
    size: int


TINY, UNEVEN = Layer(4, 16), Layer(3, 25)
SMALL, LARGE = Layer(10, 256), Layer(16, 256)  # RecurrentGemma 2B and 9B


def _case(
    size: Size,
    kind: str,
    lengths: list[tuple[int, int]],
    layer: Layer,
    pad: int = 0,
    *,
    fused: bool = False,
) -> Case:
    """`fused`: x and what is beside it are columns of wider tensors."""
    dtype = DTYPES[kind]
    tokens = sum(n for n, _ in lengths)
    decodes = all(n == 1 for n, _ in lengths)
    rows = tokens + pad * decodes
    count = layer.blocks * layer.size
    before = 8 if fused else 0

    def make(device: torch.device) -> dict[str, Any]:
        both = torch.randn(2, rows, before + count, device=device, dtype=dtype)
        x, beside = both[..., before:]
        gates = torch.randn(rows, layer.blocks, 2, layer.size, device=device, dtype=dtype)
        # Half of the channels forget fast, half of them slowly.
        rate = torch.tensor([4.0, 0.02], device=device).repeat(count)[:count]
        biases = torch.randn(layer.blocks, 2, layer.size, device=device)
        states = torch.randn(len(lengths) + 2, 1, 1, 1, count, device=device)
        return {
            "x": x,
            "gates": gates,
            "beside": beside,
            "channels": (rate, biases),
            "states": states,
            "runs": runs(lengths, device, pad=pad),
        }

    moved = tokens * 5 * count * dtype.itemsize + 8 * len(lengths) * count
    more = f"-pad{pad}" * bool(pad) + "-fused" * fused
    name = f"{kind}-{len(lengths)}of{tokens}x{layer.blocks}x{layer.size}{more}"
    # States of long runs add up errors of float32.
    tolerance = max(TOLERANCE[dtype], 1e-5)
    return Case(name, size, make, tolerance, bytes_moved=moved if decodes else 0)


CASES = [
    *(_case(Size.SMALL, kind, DECODES, TINY, pad=2) for kind in DTYPES),
    *(_case(Size.SMALL, kind, CHUNKS, TINY, pad=1) for kind in DTYPES),
    _case(Size.SMALL, "f32", DECODES, UNEVEN, fused=True),
    _case(Size.SMALL, "f32", CHUNKS, UNEVEN, fused=True),
    _case(Size.SMALL, "bf16", [(9, 12), (8, 8), (17, 40)], Layer(1, 7), fused=True),
    _case(Size.FULL, "bf16", [(1, 700)] * 70, SMALL),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], LARGE),
    _case(Size.FULL, "f16", CHUNKS, SMALL),
    _case(Size.FULL, "f32", CHUNKS, SMALL),
    _case(Size.BENCH, "bf16", [(1, 700)], SMALL),
    _case(Size.BENCH, "bf16", [(1, 700)] * 64, LARGE),
    _case(Size.BENCH, "bf16", [(8192, 8192)], LARGE),
    _case(Size.BENCH, "bf16", [(2048, 2048)] * 4, SMALL),
]
