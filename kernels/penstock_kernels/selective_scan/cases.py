"""Cases of selective_scan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size, runs

DECODES = [(1, 1), (1, 2), (1, 9), (1, 300)]
CHUNKS = [(5, 5), (1, 4), (2, 90), (40, 140), (1, 1), (70, 70)]


@dataclass(frozen=True)
class Layer:
    """Shape of a Mamba-2 layer."""

    heads: int
    head_dim: int
    groups: int
    state: int


LINEAR = Layer(3, 24, 3, 24)  # lightning attention has keys and queries for each head
TINY, UNEVEN = Layer(4, 32, 2, 16), Layer(3, 12, 1, 20)
GRANITE = Layer(48, 64, 1, 128)  # Granite 4.0 H Tiny
NEMOTRON = Layer(64, 64, 8, 128)  # Nemotron 3 Nano
FALCON = Layer(24, 128, 1, 256)  # Falcon-H1 7B
MINIMAX = Layer(64, 128, 64, 128)  # MiniMax-Text-01; each token is one step
ONE = (1.0, 1.0)


def _case(
    size: Size,
    kind: str,
    lengths: list[tuple[int, int]],
    layer: Layer,
    pad: int = 0,
    limits: tuple[float, float] = (0.0, math.inf),
    *,
    alike: bool = False,
) -> Case:
    """`alike`: all tokens have the same steps, in one row, and states decay slowly."""
    dtype = DTYPES[kind]
    tokens = sum(n for n, _ in lengths)
    decodes = all(n == 1 for n, _ in lengths)
    rows = tokens + pad * decodes
    inner, both = layer.heads * layer.head_dim, layer.groups * layer.state

    def make(device: torch.device) -> dict[str, Any]:
        mixed = torch.randn(rows, inner + 2 * both, device=device, dtype=dtype)
        x, b, c = mixed.split([inner, both, both], 1)
        # Steps are the last columns of a fused projection.
        fused = torch.randn(rows, 24 + layer.heads, device=device, dtype=dtype)
        decay, bias, skip = torch.rand(3, layer.heads, device=device)
        shape = (len(lengths) + 2, 1, layer.heads, layer.state, layer.head_dim)
        return {
            "x": x.unflatten(1, (layer.heads, -1)),
            "b": b.unflatten(1, (layer.groups, -1)),
            "c": c.unflatten(1, (layer.groups, -1)),
            "step": fused[:1, 24:].expand(rows, -1) if alike else fused[:, 24:],
            "heads": ((decay if alike else 15 * decay + 1).log(), bias - 3, skip),
            "states": torch.randn(shape, device=device),
            "runs": runs(lengths, device, pad=pad),
            "limits": limits,
        }

    state = layer.heads * layer.state * layer.head_dim * 4
    moved = 2 * tokens * (inner + both) * dtype.itemsize + 2 * len(lengths) * state
    shape = f"{layer.groups}:{layer.heads}x{layer.state}x{layer.head_dim}"
    options = {f"pad{pad}": pad, "limits": limits[0], "alike": alike}
    more = "".join(f"-{name}" for name, is_set in options.items() if is_set)
    name = f"{kind}-{len(lengths)}of{tokens}x{shape}{more}"
    # States of long runs add up errors of float32.
    tolerance = max(TOLERANCE[dtype], 1e-4)
    return Case(name, size, make, tolerance, bytes_moved=moved if decodes else 0)


CASES = [
    *(_case(Size.SMALL, kind, DECODES, TINY, pad=2) for kind in DTYPES),
    *(_case(Size.SMALL, kind, CHUNKS, TINY, pad=1) for kind in DTYPES),
    _case(Size.SMALL, "f32", CHUNKS, UNEVEN),
    _case(Size.SMALL, "f32", DECODES, UNEVEN),
    _case(Size.SMALL, "f32", CHUNKS, TINY, limits=(0.05, 0.1)),
    _case(Size.SMALL, "f32", [(5, 5), (3, 9), (1, 4), (16, 16)], UNEVEN, pad=1),
    _case(Size.SMALL, "f16", [(64, 64), (96, 200), (33, 40)], UNEVEN),
    _case(Size.SMALL, "f16", CHUNKS, TINY, limits=(0.05, 0.1)),
    _case(Size.SMALL, "f16", [(3, 3), (1, 9), (65, 80)], Layer(1, 20, 1, 160), pad=1),
    *(_case(Size.SMALL, kind, DECODES, LINEAR, 2, ONE, alike=True) for kind in DTYPES),
    *(_case(Size.SMALL, kind, CHUNKS, LINEAR, 1, ONE, alike=True) for kind in DTYPES),
    _case(Size.FULL, "bf16", [(1, 700)] * 70, GRANITE),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], GRANITE),
    _case(Size.FULL, "f16", CHUNKS, NEMOTRON),
    _case(Size.FULL, "bf16", [(300, 300), (64, 128), (17, 900)], FALCON),
    _case(Size.FULL, "f32", CHUNKS, Layer(2, 128, 1, 256)),
    _case(Size.FULL, "bf16", [(1, 700)] * 9, MINIMAX, limits=ONE, alike=True),
    _case(Size.FULL, "bf16", [(300, 300), (64, 128), (17, 900)], MINIMAX, limits=ONE, alike=True),
    _case(Size.BENCH, "bf16", [(1, 700)], NEMOTRON),
    _case(Size.BENCH, "bf16", [(1, 700)] * 64, NEMOTRON),
    _case(Size.BENCH, "bf16", [(1, 700)] * 256, GRANITE),
    _case(Size.BENCH, "bf16", [(8192, 8192)], GRANITE),
    _case(Size.BENCH, "bf16", [(2048, 2048)] * 4, NEMOTRON),
    _case(Size.BENCH, "bf16", [(1, 700)] * 64, MINIMAX, limits=ONE, alike=True),
    _case(Size.BENCH, "bf16", [(8192, 8192)], MINIMAX, limits=ONE, alike=True),
]
