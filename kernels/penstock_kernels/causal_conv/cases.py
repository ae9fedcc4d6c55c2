"""Cases of causal_conv."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size, runs

DECODES = [(1, 1), (1, 2), (1, 9), (1, 300)]
CHUNKS = [(5, 5), (1, 4), (2, 2), (2, 90), (40, 40), (33, 70), (1, 1)]


def _case(
    size: Size,
    kind: str,
    lengths: list[tuple[int, int]],
    channels: int,
    width: int = 4,
    pad: int = 0,
    plain: bool = False,
    bias: bool = False,
    part: bool = False,
    groups: int = 0,
) -> Case:
    """`part`: states have more channels, and weights are float32; `groups`: of channels whose
    weights each token adds to."""
    dtype = DTYPES[kind]
    tokens = sum(n for n, _ in lengths)
    decodes = all(n == 1 for n, _ in lengths)
    rows = tokens + pad * decodes

    def make(device: torch.device) -> dict[str, Any]:
        # Gates lie behind the channels, as a fused projection has them.
        x = torch.randn(rows, channels + 24, device=device, dtype=dtype)[:, :channels]
        weight = torch.randn(channels, width, device=device, dtype=dtype)
        states = torch.randn(
            len(lengths) + 2, 1, 1, channels, width - 1, device=device, dtype=dtype
        )
        found: dict[str, Any] = {"x": x, "weight": weight, "states": states}
        if part:
            found["weight"] = weight.float()
            wider = torch.randn(len(states), 1, 1, channels + 7, width - 1, device=device)
            found["states"] = wider.to(dtype)[:, :, :, 3 : channels + 3]
        found["runs"] = runs(lengths, device, pad=pad)
        if groups:
            shape = rows, groups, width
            found["taps"] = torch.randn(shape, device=device, dtype=found["weight"].dtype)
        if bias:
            found["bias"] = torch.randn(channels, device=device, dtype=dtype)
        return found | ({"silu": False} if plain else {})

    kept = 2 * len(lengths) * (width - 1)
    moved = (2 * tokens + kept) * channels * dtype.itemsize
    name = f"{kind}-{len(lengths)}of{tokens}x{channels}x{width}{f'-pad{pad}' if pad else ''}"
    name += "-plain" * plain + "-bias" * bias + "-part" * part
    name += f"-taps{groups}" if groups else ""
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, DECODES, 40, pad=2) for kind in DTYPES),
    *(_case(Size.SMALL, kind, CHUNKS, 40, pad=1) for kind in DTYPES),
    _case(Size.SMALL, "f32", CHUNKS, 17, 3),
    _case(Size.SMALL, "f32", DECODES, 130, 2),
    _case(Size.SMALL, "f32", CHUNKS, 40, 3, plain=True),
    _case(Size.SMALL, "bf16", CHUNKS, 40, 2, plain=True, bias=True),
    _case(Size.SMALL, "bf16", DECODES, 130, 3, plain=True, bias=True),
    _case(Size.SMALL, "f32", CHUNKS, 40, bias=True),
    _case(Size.SMALL, "f32", DECODES, 40, pad=1, bias=True),
    _case(Size.SMALL, "bf16", CHUNKS, 40, 7, plain=True),
    _case(Size.SMALL, "f32", DECODES, 40, 7, plain=True),
    _case(Size.SMALL, "bf16", CHUNKS, 40, 10),
    _case(Size.SMALL, "f32", DECODES, 40, 10, pad=1),
    _case(Size.SMALL, "f32", CHUNKS, 2, 3, pad=1, plain=True),
    _case(Size.SMALL, "f32", DECODES, 2, 3, pad=1, plain=True),
    *(_case(Size.SMALL, kind, DECODES, 40, pad=1, plain=True, part=True) for kind in DTYPES),
    *(_case(Size.SMALL, kind, CHUNKS, 140, pad=1, plain=True, part=True) for kind in DTYPES),
    *(
        _case(Size.SMALL, kind, lengths, 140, pad=1, plain=True, part=True, groups=4)
        for kind in ("f32", "bf16")
        for lengths in (DECODES, CHUNKS)
    ),
    _case(Size.SMALL, "f32", CHUNKS, 40, 3, groups=1),
    _case(Size.FULL, "bf16", [(1, 700)] * 70, 8192),
    _case(Size.FULL, "bf16", [(1, 700)] * 70, 6144, plain=True, part=True),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], 6144, plain=True, part=True),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], 4096),
    # Inkling 2's keys and values.
    *(
        _case(Size.FULL, "bf16", lengths, 2048, plain=True, part=True, groups=16)
        for lengths in ([(1, 700)] * 70, [(700, 700), (1000, 3000), (3, 9)])
    ),
    _case(Size.FULL, "f16", CHUNKS, 1000),
    _case(Size.FULL, "bf16", [(700, 700), (3, 9)], 2048, 3, plain=True, bias=True),
    _case(Size.BENCH, "bf16", [(1, 700)], 8192),
    _case(Size.BENCH, "bf16", [(1, 700)] * 64, 8192),
    _case(Size.BENCH, "bf16", [(8192, 8192)], 8192),
]
