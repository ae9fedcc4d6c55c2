"""Cases of index_tokens.

Numbers are small integers, whose scores are exact in any order of the sums and often equal: the
choice is compared without a tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..case import DTYPES, Case, Heads, Index, Size, paged


def index_arguments(
    shape: Index,
    chunks: Sequence[tuple[int, int]],
    most: int,
    dtype: torch.dtype,
    device: torch.device,
    block_tokens: int = 16,
) -> dict[str, Any]:
    """Random tensors for sequences of (queries, kv_len); decodes if all have one query or none."""
    counts, lengths = [n for n, _ in chunks], [length for _, length in chunks]
    decode = all(n == min(length, 1) for n, length in chunks)
    memory = paged(lengths, Heads(shape.heads, 1, shape.row, block_tokens), dtype, device)
    memory["kv_cache"] = memory["kv_cache"][:, :1].mul(2).round().clamp(-3, 3).contiguous()
    starts = torch.tensor([0, *counts], device=device).cumsum(0).int()
    tokens = len(chunks) if decode else sum(counts)
    q = torch.randint(-2, 3, (tokens, shape.heads, shape.size), device=device)
    weights = torch.randint(-1, 4, (tokens, shape.heads), device=device)
    return {
        "q": q.to(dtype),
        "weights": weights.float(),
        **memory,
        "query_start": None if decode else starts,
        "rows": torch.full((tokens, most), -7, dtype=torch.int32, device=device),
        "counts": torch.full((tokens,), -7, dtype=torch.int32, device=device),
    }


def _case(
    size: Size,
    kind: str,
    shape: Index,
    chunks: Sequence[tuple[int, int]],
    most: int,
    block_tokens: int = 16,
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        return index_arguments(shape, chunks, most, dtype, device, block_tokens)

    shown = "+".join(f"{n}of{length}" for n, length in chunks[:4])
    more = f"+{len(chunks) - 4}more" if len(chunks) > 4 else ""
    name = f"{kind}-{shape.heads}x{shape.size}in{shape.row}-top{most}-page{block_tokens}"
    pairs = sum(n * length - n * (n - 1) // 2 for n, length in chunks)
    work = 2 * pairs * shape.heads * shape.size
    return Case(f"{name}-{shown}{more}", size, make, 0.0, operations=work)


def _decodes(*lengths: int) -> list[tuple[int, int]]:
    return [(min(length, 1), length) for length in lengths]


TINY = Index(3, 24, 8, 60)
V32, GLM5 = Index(64, 128, 64, 704), Index(32, 128, 64, 704)
BLOCKS = Index(16, 24, 8, 4 * 88)  # a row is four tokens', and the last one has the key
QWEN4 = Index(16, 128, 64, 16 * 640)
MIXED = [(1, 1), (17, 17), (5, 300), (0, 9), (300, 301), (64, 129), (1, 5550)]

CASES = [
    *(_case(Size.SMALL, kind, TINY, _decodes(3, 0, 9, 65), 8, 4) for kind in DTYPES),
    _case(Size.SMALL, "f32", TINY, _decodes(700, 1, 1300), 30, 5),
    _case(Size.SMALL, "f32", TINY, _decodes(0, 0), 8, 4),
    *(_case(Size.SMALL, kind, BLOCKS, _decodes(3, 0, 9, 65), 8, 4) for kind in DTYPES),
    _case(Size.SMALL, "f32", BLOCKS, _decodes(3, 0, 9, 65), 8, 1),
    _case(Size.SMALL, "f32", TINY, [(3, 9), (9, 9), (0, 7), (4, 33)], 64, 4),
    *(_case(Size.SMALL, kind, TINY, [(3, 3), (2, 9), (0, 7), (6, 25)], 5, 4) for kind in DTYPES),
    _case(Size.SMALL, "f32", Index(20, 16, 8, 16), [(7, 70), (1, 1)], 16, 5),
    _case(Size.SMALL, "f32", TINY, [(0, 5)], 3, 4),
    _case(Size.SMALL, "f32", TINY, [*[(1, 3)] * 66, (2, 2), (0, 1)], 2, 4),
    *(_case(Size.FULL, kind, V32, _decodes(1, 0, 2048, 2049, 9000), 2048) for kind in DTYPES),
    *(_case(Size.FULL, kind, QWEN4, _decodes(1, 0, 128, 129, 900), 128, 1) for kind in DTYPES),
    *(_case(Size.FULL, kind, GLM5, MIXED, 128) for kind in DTYPES),
    _case(Size.FULL, "bf16", V32, _decodes(70_001, 5), 2048),
    _case(Size.FULL, "bf16", V32, _decodes(*range(1, 3000, 70)), 2048),
    _case(Size.FULL, "bf16", GLM5, [(700, 40_000), (5, 3000)], 2048),
    _case(Size.BENCH, "bf16", V32, _decodes(*[8192] * 32), 2048),
    _case(Size.BENCH, "bf16", V32, _decodes(100_000), 2048),
    _case(Size.BENCH, "bf16", GLM5, [(4096, 8192)], 2048),
]
