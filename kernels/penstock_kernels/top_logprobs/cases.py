"""Cases of top_logprobs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..case import DTYPES, Case, Size


class Rows(NamedTuple):
    """Sizes of a case: rows that are asked for among those of the logits."""

    selected: int
    rows: int
    vocabulary: int
    alternatives: int


def _case(size: Size, kind: str, shape: Rows) -> Case:
    dtype = DTYPES[kind]
    selected, rows, vocabulary, alternatives = shape

    def make(device: torch.device) -> dict[str, Any]:
        logits = 3 * torch.randn(rows, vocabulary + 5, device=device)
        logits[:, 1::7] = -torch.inf
        logits[:, 3:10] = logits[:, 2:3]  # ties
        logits[0, ::2] = 9.0  # in every tile more equal maxima than are returned
        if not alternatives:
            logits[1:2, 40] = torch.nan
            logits[2:3] = -torch.inf
        targets = torch.randint(0, vocabulary, (selected,), device=device)
        targets[: selected // 2] = 2
        return {
            "logits": logits.to(dtype)[:, :vocabulary],
            "rows": torch.randint(0, rows, (selected,), device=device),
            "targets": targets,
            "count": alternatives,
        }

    title = f"{kind}-{selected}of{rows}x{vocabulary}-top{alternatives}"
    return Case(title, size, make, 1e-5, bytes_moved=selected * vocabulary * dtype.itemsize)


CASES = [
    *(_case(Size.SMALL, kind, Rows(5, 3, 301, 20)) for kind in DTYPES),
    _case(Size.SMALL, "f32", Rows(4, 4, 9001, 5)),
    _case(Size.SMALL, "bf16", Rows(2, 6, 4099, 0)),
    *(_case(Size.SMALL, kind, Rows(9, 4, 301, 0)) for kind in DTYPES),
    _case(Size.SMALL, "f32", Rows(0, 3, 301, 0)),
    _case(Size.SMALL, "f32", Rows(1, 1, 23, 20)),
    *(_case(Size.FULL, kind, Rows(40, 64, 32_003, 20)) for kind in DTYPES),
    _case(Size.FULL, "bf16", Rows(7, 7, 151_936, 3)),
    _case(Size.BENCH, "bf16", Rows(32, 32, 128_256, 5)),
    _case(Size.BENCH, "bf16", Rows(256, 256, 128_256, 5)),
    *(_case(Size.BENCH, "bf16", Rows(rows, rows, 128_256, 0)) for rows in (32, 128, 256)),
    _case(Size.BENCH, "bf16", Rows(32, 32, 128_256, 20)),
]
