"""Cases of paged_prefill_attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..case import (
    ALIBI,
    ALIGNED,
    BOTH,
    CAPPED,
    DTYPES,
    PLAIN,
    PLAIN_KV,
    QUANTIZED_KV,
    SCORED,
    SINKS,
    Case,
    Heads,
    Scoring,
    Size,
    paged,
    stored,
)
from ..shared import Rule

# Operands of the second product, the probabilities, are rounded as well as the result.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}

LLAMA_8B = Heads(32, 8, 128, 16)


def _case(
    size: Size,
    kind: str,
    heads: Heads,
    chunks: Sequence[tuple[int, int]],
    window: int = 0,
    spare: int = 3,
    rule: Scoring = PLAIN,
    kv: str = PLAIN_KV,
) -> Case:
    """`chunks` are (queries, kv_len) of each sequence."""
    dtype = DTYPES[kind]
    counts, lengths = [n for n, _ in chunks], [length for _, length in chunks]
    # By the first query, which sees furthest back.
    visible = Rule(1.0, window, rule.aligned)
    unseen = [visible.first(length - max(n, 1)) for n, length in chunks]

    def make(device: torch.device) -> dict[str, Any]:
        fused = torch.randn(
            sum(counts), heads.query + 2 * heads.kv, heads.size, device=device, dtype=dtype
        )
        starts = torch.tensor([0, *counts], device=device).cumsum(0).int()
        return {
            "q": fused[:, : heads.query],
            **stored(paged(lengths, heads, dtype, device, spare, unseen), kv),
            "query_start": starts,
            "scale": heads.size**-0.5,
            "window": window,
            **rule.arguments(heads, device),
            **rule.biases(heads, fused[:, : heads.query]),
            "max_query": max(counts),
        }

    pairs = sum(_visible(n, length, visible) for n, length in chunks)
    shape = f"{heads.query}:{heads.kv}x{heads.size}-page{heads.block_tokens}"
    shown = "+".join(f"{n}of{length}" for n, length in chunks[:4])
    more = f"+{len(chunks) - 4}more" if len(chunks) > 4 else ""
    name = f"{kind}-{shape}-{shown}{more}-window{window}{'-far' if spare > 3 else ''}{rule.name}"
    name += f"-{kv}" if kv else ""
    work = 4 * pairs * heads.query * heads.size
    return Case(name, size, make, TOLERANCE[dtype], operations=work)


def _visible(count: int, length: int, rule: Rule) -> int:
    """(query, key) pairs of the last `count` queries of `length` tokens."""
    return sum(p + 1 - rule.first(p) for p in range(length - count, length))


MIXED = [(1, 1), (17, 17), (5, 300), (0, 9), (300, 301), (64, 129), (1, 555)]


CASES = [
    *(_case(Size.SMALL, kind, Heads(6, 2, 32, 4), [(3, 3), (2, 9), (1, 5)]) for kind in DTYPES),
    _case(Size.SMALL, "f32", Heads(5, 1, 96, 5), [(7, 70), (1, 1)]),
    _case(Size.SMALL, "f32", Heads(20, 1, 80, 4), [(3, 3), (2, 9), (1, 5)]),
    _case(Size.SMALL, "f32", Heads(2, 2, 64, 8), [(20, 41), (0, 3)], window=7),
    _case(Size.SMALL, "bf16", Heads(3, 1, 32, 16), [(50, 90)], window=33),
    # Scores that a cap bends, sinks, and both.
    *(
        _case(Size.SMALL, kind, Heads(6, 2, 32, 4), [(3, 3), (2, 9), (1, 5)], rule=rule)
        for kind, rule in [("f32", BOTH), ("bf16", BOTH), ("f16", CAPPED), ("f32", SINKS)]
    ),
    *(
        _case(Size.SMALL, "f32", Heads(2, 1, size, 8), [(20, 41), (0, 3), (5, 5)], 7, rule=rule)
        for size, rule in [(64, SINKS), (256, CAPPED)]
    ),
    # ALiBi: groups, heads of odd sizes, windows, and all at once.
    *(
        _case(Size.SMALL, kind, heads, [(20, 41), (0, 3), (8, 8), (50, 90)], window, 3, rule, kv)
        for kind, heads, window, rule, kv in [
            ("f32", Heads(6, 2, 32, 4), 0, ALIBI, PLAIN_KV),
            ("bf16", Heads(6, 2, 32, 4), 0, ALIBI, PLAIN_KV),
            ("f32", Heads(5, 5, 80, 8), 7, ALIBI, PLAIN_KV),
            ("f32", Heads(4, 1, 112, 8), 0, ALIBI, "int4"),
            ("f32", Heads(4, 2, 64, 8), 300, Scoring(3.0, True, True, True), "int8"),
        ]
    ),
    # Bloom 560M, BloomZ 3B, a rank of Bloom 176B, MPT 7B and 30B, Baichuan 13B, Falcon-RW 7B.
    *(
        _case(Size.FULL, kind, heads, MIXED, rule=ALIBI, kv=kv)
        for kind, heads, kv in [
            ("f16", Heads(16, 16, 64, 16), PLAIN_KV),
            ("bf16", Heads(32, 32, 80, 16), PLAIN_KV),
            ("bf16", Heads(14, 14, 128, 16), PLAIN_KV),
            ("bf16", Heads(32, 32, 128, 16), PLAIN_KV),
            ("bf16", Heads(64, 64, 112, 16), PLAIN_KV),
            ("f32", Heads(40, 40, 128, 16), PLAIN_KV),
            ("bf16", Heads(71, 71, 64, 16), PLAIN_KV),
            *(("bf16", Heads(8, 2, 128, 16), kv) for kv in QUANTIZED_KV),
        ]
    ),
    # Biases of each query: shorter than a block and longer than a sequence, and all at once.
    *(
        _case(Size.SMALL, kind, heads, [(20, 41), (0, 3), (8, 8), (50, 90)], window, 3, rule, kv)
        for kind, heads, window, rule, kv in [
            ("f32", Heads(6, 2, 32, 4), 0, Scoring(extent=5), PLAIN_KV),
            ("bf16", Heads(6, 2, 32, 4), 0, Scoring(extent=1000), PLAIN_KV),
            ("f32", Heads(5, 5, 80, 8), 7, Scoring(extent=7), PLAIN_KV),
            ("f32", Heads(4, 1, 112, 8), 0, Scoring(extent=30), "int4"),
            ("f32", Heads(4, 2, 64, 8), 300, Scoring(3.0, True, True, extent=40), "int8"),
        ]
    ),
    # Sinks of each query, alone and with biases.
    *(
        _case(Size.SMALL, kind, heads, [(20, 41), (0, 3), (8, 8), (50, 90)], window, 3, rule, kv)
        for kind, heads, window, rule, kv in [
            ("f32", Heads(6, 2, 32, 4), 0, Scoring(by_query=True), PLAIN_KV),
            ("bf16", Heads(6, 2, 32, 4), 0, Scoring(by_query=True, extent=20), PLAIN_KV),
            ("f32", Heads(4, 2, 64, 8), 7, Scoring(by_query=True, extent=7), "int8"),
        ]
    ),
    # Inkling 2's full and window layers.
    *(
        _case(Size.FULL, "bf16", Heads(48, 8, 128, 16), MIXED, window, rule=rule)
        for window, rule in [
            (0, Scoring(by_query=True, extent=1024)),
            (1024, Scoring(by_query=True, extent=1024)),
            (0, Scoring(by_query=True)),
        ]
    ),
    # Inkling's full and window layers, and a rank's.
    *(
        _case(Size.FULL, "bf16", heads, MIXED, window, rule=Scoring(extent=extent), kv=kv)
        for heads, window, extent, kv in [
            (Heads(64, 8, 128, 16), 0, 1024, PLAIN_KV),
            (Heads(64, 16, 128, 16), 512, 512, PLAIN_KV),
            (Heads(8, 1, 128, 16), 0, 1024, PLAIN_KV),
            *((Heads(8, 2, 128, 16), 512, 512, kv) for kv in QUANTIZED_KV),
        ]
    ),
    # Aligned windows, which begin before, inside and behind a tile of rows and of keys.
    *(
        _case(Size.SMALL, kind, heads, [(20, 41), (0, 3), (8, 8), (50, 90)], window, 3, rule, kv)
        for kind, heads, window, rule, kv in [
            ("f32", Heads(2, 2, 64, 8), 7, ALIGNED, PLAIN_KV),
            ("bf16", Heads(3, 1, 32, 16), 33, ALIGNED, PLAIN_KV),
            ("f32", Heads(6, 2, 32, 4), 1, ALIGNED, PLAIN_KV),
            ("f32", Heads(2, 1, 64, 8), 7, Scoring(3.0, True, True), "int8"),
            ("f32", Heads(2, 2, 64, 8), 0, ALIGNED, PLAIN_KV),
        ]
    ),
    *(
        _case(Size.FULL, kind, Heads(8, 2, size, 16), MIXED, window, rule=ALIGNED, kv=kv)
        for kind, size, window, kv in [
            ("bf16", 64, 0, PLAIN_KV),
            ("bf16", 64, 100, PLAIN_KV),
            ("bf16", 128, 256, PLAIN_KV),
            ("f16", 128, 17, PLAIN_KV),
            ("bf16", 256, 300, PLAIN_KV),
            ("f32", 64, 100, PLAIN_KV),
            *(("bf16", 128, 300, kv) for kv in QUANTIZED_KV),
        ]
    ),
    # Llama 4 Scout, with shorter windows; a context that is split.
    *(
        _case(Size.FULL, "bf16", Heads(40, 8, 128, 16), chunks, window, rule=ALIGNED)
        for chunks, window in [
            ([(1500, 2500), (40, 40), (1, 1025)], 1024),
            ([(16, 8000), (3, 700)], 8192),
            ([(64, 8220)], 8192),
        ]
    ),
    # Gemma 4's full layers.
    *(
        _case(Size.SMALL, kind, Heads(4, 2, 512, 8), [(20, 41), (0, 3), (5, 5)], kv=kv)
        for kind, kv in [("f32", PLAIN_KV), ("bf16", PLAIN_KV), ("f32", "int4"), ("f32", "e4m3")]
    ),
    *(
        _case(Size.FULL, kind, heads, MIXED, kv=kv)
        for kind, heads, kv in [
            ("bf16", Heads(8, 1, 512, 16), PLAIN_KV),
            ("bf16", Heads(32, 4, 512, 16), PLAIN_KV),
            ("f16", Heads(16, 2, 512, 16), PLAIN_KV),
            ("f32", Heads(8, 2, 512, 16), PLAIN_KV),
            *(("bf16", Heads(8, 2, 512, 16), kv) for kv in QUANTIZED_KV),
        ]
    ),
    # Caches of fewer bits.
    *(
        _case(Size.SMALL, kind, Heads(6, 2, 32, 4), [(3, 3), (2, 9), (1, 5)], kv=kv)
        for kind in DTYPES
        for kv in QUANTIZED_KV
    ),
    *(
        _case(Size.SMALL, "f32", Heads(5, 1, 96, 5), [(7, 70), (1, 1)], kv=kv)
        for kv in QUANTIZED_KV
    ),
    *(
        _case(Size.SMALL, "f32", Heads(2, 2, 64, 8), [(20, 41), (0, 3)], 7, rule=rule, kv=kv)
        for kv, rule in zip(QUANTIZED_KV, (PLAIN, BOTH, SINKS, BOTH), strict=True)
    ),
    *(
        _case(Size.FULL, "bf16", Heads(8, 2, size, 16), MIXED, window, kv=kv)
        for size, window in [(64, 0), (96, 0), (128, 100), (256, 0)]
        for kv in QUANTIZED_KV
    ),
    *(
        _case(Size.FULL, "f16", Heads(28, 4, 128, 32), MIXED, rule=CAPPED, kv=kv)
        for kv in QUANTIZED_KV
    ),
    *(
        _case(Size.FULL, "bf16", LLAMA_8B, [(64, 640), (3, 5)], spare=70_000, kv=kv)
        for kv in QUANTIZED_KV
    ),
    # Blocks of other sizes, groups of one head and of many, contexts that are split.
    *(
        _case(Size.FULL, kind, heads, chunks, window, rule=rule, kv=kv)
        for kind, heads, chunks, window, rule in [
            ("f16", Heads(14, 2, 64, 64), MIXED, 300, PLAIN),
            ("f16", Heads(2, 2, 128, 32), MIXED, 0, PLAIN),
            ("bf16", Heads(32, 2, 128, 8), [(160, 6000), (0, 7), (1, 1)], 0, SINKS),
            ("bf16", Heads(8, 2, 128, 64), [(1500, 2500), (40, 40)], 300, PLAIN),
            ("bf16", LLAMA_8B, [(n % 40, 50 + n) for n in range(75)], 0, PLAIN),
        ]
        for kv in QUANTIZED_KV
    ),
    *(
        _case(Size.FULL, kind, Heads(8, 2, size, 16), MIXED, window, rule=rule)
        for kind, size, window, rule in SCORED
    ),
    # Windows and sinks where a context is split, and windows that begin inside a tile.
    *(
        _case(Size.FULL, "bf16", Heads(8, 2, size, 16), [(16, 5000), (3, 700)], window, rule=rule)
        for size, window, rule in [(64, 2000, PLAIN), (128, 1500, SINKS), (64, 0, SINKS)]
    ),
    _case(Size.FULL, "bf16", Heads(8, 2, 128, 16), [(1500, 2500), (40, 40)], window=300),
    # Gemma 2 9B, Gemma 3 1B, gpt-oss 20B.
    _case(Size.FULL, "bf16", Heads(16, 8, 256, 16), [(700, 700), (90, 3000)], rule=Scoring(50.0)),
    _case(Size.FULL, "bf16", Heads(4, 1, 256, 16), [(700, 700), (90, 3000)], window=512),
    _case(Size.FULL, "bf16", Heads(64, 8, 64, 16), [(700, 700), (90, 3000)], 128, rule=SINKS),
    *(
        _case(Size.FULL, kind, Heads(8, 2, size, 16), MIXED, window)
        for kind, size, window in [
            ("f32", 64, 0),
            ("f32", 128, 100),
            ("bf16", 32, 0),
            ("bf16", 64, 0),
            ("bf16", 96, 0),
            ("bf16", 128, 100),
            ("bf16", 256, 0),
            ("f16", 128, 0),
        ]
    ),
    *(_case(Size.FULL, "bf16", Heads(2 * group, 2, 128, 32), MIXED) for group in (1, 3, 7, 8, 16)),
    # StarCoder, Falcon 7B, Phi-2: one key head for many queries, heads of 80.
    *(
        _case(Size.FULL, "bf16", heads, MIXED)
        for heads in (Heads(48, 1, 128, 16), Heads(71, 1, 64, 16), Heads(8, 8, 80, 16))
    ),
    _case(Size.FULL, "bf16", Heads(28, 4, 128, 8), [(1000, 1000), (1000, 3000)]),
    *(
        _case(Size.FULL, kind, Heads(heads, kv, 256, block), chunks, window, rule=rule)
        for kind, heads, kv, block, chunks, window, rule in [
            ("bf16", 16, 4, 16, MIXED, 0, PLAIN),
            ("bf16", 16, 8, 32, MIXED, 300, SINKS),
            ("f16", 16, 8, 32, MIXED, 300, PLAIN),
            ("bf16", 16, 4, 16, [(1000, 1000), (1000, 3000)], 0, PLAIN),
            ("bf16", 12, 4, 8, [(512, 1153), (0, 7), (3, 5000)], 700, PLAIN),
            ("bf16", 4, 1, 64, [(100, 9000)], 0, PLAIN),
        ]
    ),
    _case(Size.FULL, "bf16", LLAMA_8B, [(64, 640), (3, 5)], spare=70_000),
    *(
        _case(
            Size.FULL, "bf16", Heads(query, 8, size, 16), [(100, 9000), (0, 7), (9, 9), (33, 4097)]
        )
        for query, size in ((32, 128), (32, 64), (24, 128))
    ),
    # As many splits as fill the multiprocessors.
    _case(Size.FULL, "bf16", LLAMA_8B, [(160, 6000), (0, 7)]),
    _case(Size.FULL, "bf16", LLAMA_8B, [(352, 3001), (7, 2000), (1, 1)]),
    _case(Size.FULL, "bf16", Heads(32, 8, 64, 16), [(3, 9000)] * 5),
    _case(Size.FULL, "bf16", LLAMA_8B, [(n % 40, 50 + n) for n in range(75)]),
    _case(Size.FULL, "bf16", Heads(4, 1, 128, 16), [(100, 9000)]),
    # Heads of a token in two tiles of rows, which are split otherwise.
    _case(Size.FULL, "bf16", Heads(24, 8, 128, 16), [(200, 1409)]),
    _case(Size.FULL, "bf16", Heads(12, 2, 128, 16), [(512, 1153)]),
    _case(Size.FULL, "bf16", Heads(28, 4, 64, 16), [(200, 1500)]),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(32, 32)] * 256),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(96, 30_000)]),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(160, 24_000)]),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(352, 8_000)]),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(224, 1_000)]),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(224, 30_000)]),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(4096, 4096)]),
    *(_case(Size.BENCH, "bf16", LLAMA_8B, [(4096, 4096)], kv=kv) for kv in QUANTIZED_KV),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(1024, 1024)] * 8),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(512, 8192)] * 4),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(4096, 4096)] * 4),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(2048, 32000)]),
    _case(Size.BENCH, "bf16", Heads(16, 8, 256, 16), [(4096, 4096)], rule=Scoring(50.0)),
    _case(Size.BENCH, "bf16", Heads(32, 8, 64, 16), [(4096, 4096)]),
    _case(Size.BENCH, "bf16", Heads(16, 4, 256, 16), [(4096, 4096)]),
    _case(Size.BENCH, "bf16", Heads(16, 8, 256, 16), [(4096, 4096)], window=1024),
    _case(Size.BENCH, "bf16", Heads(32, 4, 512, 16), [(4096, 4096)]),
    _case(Size.BENCH, "bf16", LLAMA_8B, [(4096, 4096)], window=1024),
]
