"""Cases of window_sum."""

from __future__ import annotations

from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size


def window_arguments(
    shape: tuple[int, int, int],
    counts: list[int],
    dtype: torch.dtype,
    device: torch.device,
    first: int = 0,
    more: int = 0,
) -> dict[str, Any]:
    """Random windows. `shape`: how many an entry has, their tokens, elements of a sum. `more`
    columns are behind the gates. Rows of tokens that there are not hold NaN."""
    windows, rate, size = shape
    reach, parts = windows * rate, windows * size
    cache = torch.randn(len(counts) * reach + 1, first + 2 * parts + more, device=device)
    cache[-1] = torch.nan
    rows = torch.randperm(len(counts) * reach, device=device).view(len(counts), reach).int()
    for sum_, count in enumerate(counts):
        rows[sum_, : reach - count] = len(cache) - 1
    return {
        "cache": cache.to(dtype),
        "rows": rows,
        "counts": torch.tensor(counts, dtype=torch.int32, device=device),
        "bias": torch.randn(rate, parts, device=device),
        "first": first,
    }


def _case(
    size: Size,
    kind: str,
    shape: tuple[int, int, int],
    counts: list[int],
    first: int = 0,
    more: int = 0,
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        return window_arguments(shape, counts, dtype, device, first, more)

    sizes = "x".join(map(str, shape))
    name = f"{kind}-{len(counts)}of{sizes}-{sum(counts)}tokens-from{first}"
    moved = 2 * shape[2] * sum(counts) * dtype.itemsize
    return Case(name, size, make, 4 * TOLERANCE[dtype], bytes_moved=moved)


CHOSEN, KEYS, HEAVY = (2, 4, 512), (2, 4, 128), (1, 128, 512)  # of DeepSeek-V4

CASES = [
    *(_case(Size.SMALL, kind, (2, 4, 40), [8, 4, 0, 8], 24, 16) for kind in DTYPES),
    *(_case(Size.SMALL, kind, (1, 32, 20), [32, 0, 32]) for kind in DTYPES),
    _case(Size.SMALL, "f32", (2, 3, 130), [6, 3], 1),
    _case(Size.SMALL, "f32", (1, 4, 8), []),
    *(_case(Size.FULL, kind, CHOSEN, [8, 4, 0, *[8] * 50], 512, 512) for kind in DTYPES),
    *(_case(Size.FULL, kind, KEYS, [8, 4, 0, *[8] * 50], 2560) for kind in DTYPES),
    *(_case(Size.FULL, kind, HEAVY, [128, 0, *[128] * 20], 512) for kind in DTYPES),
    _case(Size.BENCH, "bf16", CHOSEN, [8] * 2048, 512, 512),
    _case(Size.BENCH, "bf16", HEAVY, [128] * 64, 512),
    _case(Size.BENCH, "bf16", HEAVY, [128, *[0] * 255], 512),
]
