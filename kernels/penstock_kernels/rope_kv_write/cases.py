"""Cases of rope_kv_write."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, PLAIN_KV, QUANTIZED_KV, TOLERANCE, Case, Heads, Size, row_bytes, stored

MAX_POSITION = 4096


def _case(
    size: Size,
    kind: str,
    tokens: int,
    heads: Heads,
    blocks: int = 0,
    skipped: int = 0,
    start: int | None = None,
    kv: str = PLAIN_KV,
    reads: bool = False,
) -> Case:
    """With `reads`, there are no keys and values."""
    dtype = DTYPES[kind]
    blocks = blocks or tokens // heads.block_tokens + 3

    def make(device: torch.device) -> dict[str, Any]:
        fused = torch.randn(
            tokens, heads.query + 2 * heads.kv, heads.size, device=device, dtype=dtype
        )
        q, k, v = torch.split(fused, [heads.query, heads.kv, heads.kv], dim=1)
        angles = torch.rand(MAX_POSITION, heads.size // 2, device=device) * 6.3
        slots = torch.randperm(blocks * heads.block_tokens, device=device)[:tokens].int()
        slots[torch.randperm(tokens, device=device)[:skipped]] = -1
        shape = (blocks, 2, heads.kv, heads.block_tokens, heads.size)
        cache = torch.randn(shape, device=device, dtype=dtype)
        # What is too large for fp8; equal elements; a range that float16 has no scale for.
        if kv != PLAIN_KV and tokens > 2:
            v[0, 0, 0], v[1, 0], v[2, 0] = 6e4, -1.25, 1.5
            v[2, 0, 1] += 1e-9
        return {
            "q": q,
            "k": None if reads else k,
            "v": None if reads else v,
            "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=1),
            "positions": torch.randint(0, MAX_POSITION, (tokens,), device=device).int(),
            "slot_mapping": slots,
            **stored({"kv_cache": cache}, kv),
            "start": None if start is None else torch.tensor([start, 9], device=device).int(),
        }

    name = f"{kind}-{tokens}x{heads.query}:{heads.kv}x{heads.size}-{blocks}blocks-skip{skipped}"
    name += "" if start is None else f"-from{start}"
    name += f"{f'-{kv}' if kv else ''}{'-reads' if reads else ''}"
    moved = tokens * heads.size * ((2 * heads.query + 2 * heads.kv) * dtype.itemsize + 4)
    moved += 0 if reads else 2 * tokens * heads.kv * row_bytes(kv, dtype, heads.size)
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


CASES = [
    *(_case(Size.SMALL, kind, 5, Heads(6, 2, 32, 4), skipped=2) for kind in DTYPES),
    _case(Size.SMALL, "f32", 3, Heads(5, 1, 96, 5)),
    *(
        _case(Size.SMALL, kind, 7, Heads(6, 2, 32, 4), skipped=2, kv=kv)
        for kind in DTYPES
        for kv in QUANTIZED_KV
    ),
    *(_case(Size.SMALL, "f32", 3, Heads(5, 1, 96, 5), start=1, kv=kv) for kv in QUANTIZED_KV),
    _case(Size.SMALL, "f32", 0, Heads(4, 4, 32, 4)),
    _case(Size.SMALL, "f32", 2, Heads(2, 2, 32, 4), skipped=2),
    *(_case(Size.SMALL, "f32", 5, Heads(4, 2, 32, 4), start=start) for start in (0, 3, 5)),
    # Gemma 4's full layers, and layers that read the cache of another one.
    *(_case(Size.SMALL, "f32", 3, Heads(4, 2, 512, 4), reads=reads) for reads in (False, True)),
    *(_case(Size.SMALL, kind, 5, Heads(6, 2, 32, 4), start=1, reads=True) for kind in DTYPES),
    _case(Size.SMALL, "f32", 3, Heads(6, 2, 32, 4), kv="int8", reads=True),
    *(
        _case(Size.FULL, "bf16", 131, Heads(16, kv, 512, 16), reads=reads)
        for kv in (1, 2)
        for reads in (False, True)
    ),
    _case(Size.FULL, "bf16", 300, Heads(32, 8, 128, 16), start=77),
    *(_case(Size.FULL, kind, 517, Heads(28, 4, 128, 16), skipped=5) for kind in DTYPES),
    *(_case(Size.FULL, "bf16", 131, Heads(16, 1, size, 16)) for size in (32, 64, 96, 256)),
    _case(Size.FULL, "bf16", 999, Heads(32, 8, 128, 16), blocks=70_000),
    *(
        _case(Size.FULL, "bf16", 131, Heads(28, 4, size, 16), skipped=5, kv=kv)
        for size in (32, 64, 96, 128, 256, 512)
        for kv in QUANTIZED_KV
    ),
    *(_case(Size.FULL, "bf16", 99, Heads(32, 8, 128, 16), 70_000, kv=kv) for kv in QUANTIZED_KV),
    _case(Size.BENCH, "bf16", 256, Heads(32, 8, 128, 16), blocks=8192),
    _case(Size.BENCH, "bf16", 16384, Heads(32, 8, 128, 16), blocks=8192),
    *(_case(Size.BENCH, "bf16", 16384, Heads(32, 8, 128, 16), 8192, kv=kv) for kv in QUANTIZED_KV),
]
