"""Cases of latent_attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..case import DTYPES, Case, Heads, Latent, Size, paged

# Operands of the second product, the probabilities, are rounded as well as the result.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


def latent_arguments(
    shape: Latent,
    chunks: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    block_tokens: int = 16,
    spare: int = 3,
    sinks: bool = False,
    lse: bool = False,
) -> dict[str, Any]:
    """Random tensors for sequences of (queries, kv_len); decodes if all have one query or none.

    The first of the `sinks` is far above all scores, the last absent.
    """
    size = shape.rank + shape.rotated
    counts, lengths = [n for n, _ in chunks], [length for _, length in chunks]
    decode = all(n == min(length, 1) for n, length in chunks)
    memory = paged(lengths, Heads(shape.heads, 1, shape.row, block_tokens), dtype, device, spare)
    memory["kv_cache"] = memory["kv_cache"][:, :1].contiguous()
    starts = torch.tensor([0, *counts], device=device).cumsum(0).int()
    rows = len(chunks) if decode else sum(counts)
    of_heads = 3 * torch.randn(shape.heads, device=device)
    of_heads[0], of_heads[-1] = 20.0, -torch.inf
    return {
        "q": torch.randn(rows, shape.heads, size, device=device, dtype=dtype),
        **memory,
        "query_start": None if decode else starts,
        "scale": 0.8 * size**-0.5,
        "rank": shape.rank,
        "max_query": 1 if decode else max(counts),
        "sinks": of_heads if sinks else None,
        **({"lse": torch.zeros(rows, shape.heads, device=device)} if lse else {}),
    }


def _case(
    size: Size,
    kind: str,
    shape: Latent,
    chunks: Sequence[tuple[int, int]],
    block_tokens: int = 16,
    spare: int = 3,
    sinks: bool = False,
    lse: bool = False,
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        return latent_arguments(shape, chunks, dtype, device, block_tokens, spare, sinks, lse)

    counts = [n for n, _ in chunks]
    shown = "+".join(f"{n}of{length}" for n, length in chunks[:4])
    more = f"+{len(chunks) - 4}more" if len(chunks) > 4 else ""
    name = f"{kind}-{shape.heads}x{shape.rank}+{shape.rotated}-page{block_tokens}-{shown}{more}"
    name += "-far" if spare > 3 else ""
    name += "-sinks" if sinks else ""
    name += "-lse" if lse else ""
    name += f"-in{shape.row}" if shape.more else ""
    row = (shape.rank + shape.rotated) * dtype.itemsize
    if max(counts) == 1:
        queries = sum(counts) * shape.heads * (2 * shape.rank + shape.rotated) * dtype.itemsize
        moved = queries + row * sum(length for _, length in chunks)
        return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)
    pairs = sum(n * length - n * (n - 1) // 2 for n, length in chunks)
    work = 2 * pairs * shape.heads * (2 * shape.rank + shape.rotated)
    return Case(name, size, make, TOLERANCE[dtype], operations=work)


def _decodes(*lengths: int) -> list[tuple[int, int]]:
    return [(min(length, 1), length) for length in lengths]


WIDE = "f32", "bf16"  # float16 rounds the outputs of a head with a large sink to 0
TINY = Latent(6, 40, 12)
LITE, V3 = Latent(16, 512, 64), Latent(128, 512, 64)
SPARSE = Latent(128, 512, 64, 128)  # V3.2, with a table of tokens for each query
HY4 = Latent(32, 512, 64, 128)
GLM5_NEXT = Latent(64, 512, 0, 256)  # with a table of pools of 16 tokens for each query
SHARED = Latent(64, 512, 0, 128)  # DeepSeek-V4: the key is the value
VALUE_KEY = Latent(4, 32, 32, 24)  # rows of as many elements of value and of key, and an index key
QWEN4 = Latent(8, 256, 256, 128)
DOTS3 = Latent(64, 1024, 64)  # with a table of the window's tokens for each query
MIXED = [(1, 1), (17, 17), (5, 300), (0, 9), (300, 301), (64, 129), (1, 555)]
DECODES = _decodes(1, 0, 16, 17, 255, 256, 257, 1000, 64, 0, 3001)

CASES = [
    *(_case(Size.SMALL, kind, TINY, _decodes(3, 0, 9, 65), 4) for kind in DTYPES),
    _case(Size.SMALL, "f32", Latent(3, 64, 16), _decodes(300, 1, 700), 5),
    _case(Size.SMALL, "f32", TINY, _decodes(0, 0), 4),
    *(_case(Size.SMALL, kind, TINY, [(3, 3), (2, 9), (1, 5), (0, 7)], 4) for kind in DTYPES),
    _case(Size.SMALL, "f32", Latent(20, 32, 8), [(7, 70), (1, 1)], 5),
    _case(Size.SMALL, "f32", Latent(5, 32, 8), [(3, 400)], 8),
    _case(Size.SMALL, "f32", Latent(6, 40, 12, 20), _decodes(65, 0, 3), 1),
    _case(Size.SMALL, "f32", Latent(6, 40, 0, 24), _decodes(65, 0, 3), 4),
    _case(Size.SMALL, "f32", Latent(3, 32, 0), [(3, 3), (2, 9)], 4),
    *(_case(Size.SMALL, kind, VALUE_KEY, _decodes(65, 0, 3), 4) for kind in DTYPES),
    _case(Size.SMALL, "f32", Latent(3, 64, 16), _decodes(300, 1, 0, 700), 5, sinks=True),
    *(_case(Size.SMALL, kind, TINY, [(3, 3), (2, 9)], 4, sinks=True) for kind in WIDE),
    _case(Size.SMALL, "f32", Latent(5, 32, 8), [(3, 400)], 8, sinks=True),
    *(
        _case(Size.SMALL, kind, Latent(6, 40, 0, 8), _decodes(65, 0, 3), 1, lse=True)
        for kind in DTYPES
    ),
    _case(Size.SMALL, "f32", Latent(3, 64, 16), _decodes(300, 1, 0, 700), 5, sinks=True, lse=True),
    _case(Size.SMALL, "f32", Latent(5, 32, 8), [(3, 400)], 8, lse=True),
    *(_case(Size.SMALL, kind, Latent(3, 520, 8), _decodes(300, 0, 3), 1) for kind in DTYPES),
    _case(Size.SMALL, "bf16", Latent(18, 520, 8), [(2, 20), (1, 1)], 4),
    *(_case(Size.FULL, kind, LITE, DECODES) for kind in DTYPES),
    *(_case(Size.FULL, kind, LITE, MIXED) for kind in DTYPES),
    *(_case(Size.FULL, "bf16", Latent(heads, 512, 64), DECODES) for heads in (1, 20, 32, 128)),
    *(_case(Size.FULL, "bf16", Latent(heads, 512, 64), MIXED) for heads in (3, 20, 128)),
    _case(Size.FULL, "f16", Latent(32, 256, 64), MIXED, 32),
    _case(Size.FULL, "bf16", LITE, _decodes(70_001, 5)),
    _case(Size.FULL, "bf16", LITE, _decodes(*range(1, 1100, 7))),
    _case(Size.FULL, "bf16", LITE, [(33, 9000), (0, 7), (9, 9)]),
    _case(Size.FULL, "bf16", LITE, _decodes(640, 5, 0), spare=70_000),
    *(_case(Size.FULL, kind, SPARSE, DECODES, 1) for kind in DTYPES),
    *(_case(Size.FULL, kind, HY4, DECODES, 1, sinks=True) for kind in WIDE),
    *(_case(Size.FULL, kind, QWEN4, DECODES, 16) for kind in DTYPES),
    _case(Size.FULL, "bf16", HY4, MIXED, sinks=True),
    *(_case(Size.FULL, kind, GLM5_NEXT, DECODES) for kind in DTYPES),
    _case(Size.FULL, "bf16", GLM5_NEXT, MIXED),
    *(_case(Size.FULL, kind, SHARED, DECODES, 1, lse=True) for kind in DTYPES),
    *(_case(Size.FULL, kind, DOTS3, DECODES, 1) for kind in DTYPES),
    _case(Size.FULL, "bf16", Latent(8, 1024, 64), DECODES, 1),
    _case(Size.FULL, "bf16", DOTS3, MIXED),
    _case(Size.BENCH, "bf16", LITE, _decodes(384)),
    _case(Size.BENCH, "bf16", LITE, _decodes(32_000)),
    _case(Size.BENCH, "bf16", LITE, _decodes(*[640] * 32)),
    _case(Size.BENCH, "bf16", LITE, _decodes(*[1100] * 256)),
    _case(Size.BENCH, "bf16", V3, _decodes(*[1100] * 64)),
    _case(Size.BENCH, "bf16", LITE, [(4096, 4096)]),
    _case(Size.BENCH, "bf16", LITE, [(512, 8192)]),
    _case(Size.BENCH, "bf16", V3, [(2048, 2048)]),
    _case(Size.BENCH, "bf16", SPARSE, _decodes(*[2048] * 32), 1),
    _case(Size.BENCH, "bf16", SPARSE, _decodes(*[2048] * 1024), 1),
    _case(Size.BENCH, "bf16", GLM5_NEXT, _decodes(*[2063] * 32)),
    _case(Size.BENCH, "bf16", SHARED, _decodes(*[640] * 256), 1, lse=True),
    _case(Size.BENCH, "bf16", DOTS3, _decodes(*[512] * 32), 1),
    _case(Size.BENCH, "bf16", DOTS3, _decodes(*[512] * 1024), 1),
]
