"""Cases of paged_decode_attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
    row_bytes,
    stored,
)
from ..shared import Rule

# Operands of the second product, the probabilities, are rounded as well as the result.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}

LLAMA_8B = Heads(32, 8, 128, 16)
LLAMA_1B = Heads(32, 8, 64, 16)


def decode_arguments(
    heads: Heads,
    lengths: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    spare: int = 3,
    claimed: int = -1,
    window: int = 0,
    kv: str = PLAIN_KV,
    reads: bool = False,
    aligned: bool = False,
) -> dict[str, Any]:
    """Random tensors for sequences of these lengths; the newest key is not in the cache yet, unless
    the layer only `reads` the cache.

    `claimed` is the place that padding names, and blocks that `window` has passed are NaN.
    """
    fused = torch.randn(
        len(lengths), heads.query + 2 * heads.kv, heads.size, device=device, dtype=dtype
    )
    q, k, v = torch.split(fused, [heads.query, heads.kv, heads.kv], dim=1)
    rule = Rule(1.0, window, aligned)
    unseen = [rule.first(length - 1) if length else 0 for length in lengths]
    memory = paged(lengths, heads, dtype, device, spare, unseen)
    slot_mapping = _newest(memory, claimed, torch.nan if not reads else None)
    angles = torch.rand(max(*lengths, 1), heads.size // 2, device=device) * 6.3
    return {
        "q": q,
        "k": None if reads else k,
        "v": None if reads else v,
        "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=1),
        "positions": (memory["kv_len"] - 1).clamp(min=0),
        "slot_mapping": slot_mapping,
        **stored(memory, kv),
    }


def _case(
    size: Size,
    kind: str,
    heads: Heads,
    lengths: Sequence[int],
    window: int = 0,
    spare: int = 3,
    claimed: int = -1,
    rule: Scoring = PLAIN,
    kv: str = PLAIN_KV,
    reads: bool = False,
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        case = decode_arguments(
            heads, lengths, dtype, device, spare, claimed, window, kv, reads, rule.aligned
        )
        return {
            **case,
            "scale": heads.size**-0.5,
            "window": window,
            **rule.arguments(heads, device),
            **rule.biases(heads, case["q"]),
        }

    visible = Rule(1.0, window, rule.aligned)
    keys = sum(length - visible.first(length - 1) for length in lengths if length)
    shape = f"{heads.query}:{heads.kv}x{heads.size}-page{heads.block_tokens}"
    shown = f"{len(lengths)}seqs-{min(lengths)}..{max(lengths)}"
    name = f"{kind}-{shape}-{shown}-window{window}{'-far' if spare > 3 else ''}"
    name += f"{'-claimed' if claimed >= 0 else ''}{rule.name}{f'-{kv}' if kv else ''}"
    name += "-reads" if reads else ""
    queries = 2 * len(lengths) * heads.query * heads.size * dtype.itemsize
    moved = queries + 2 * keys * heads.kv * row_bytes(kv, dtype, heads.size)
    return Case(name, size, make, TOLERANCE[dtype], bytes_moved=moved)


def _newest(memory: dict[str, Tensor], claimed: int, there: float | None) -> Tensor:
    """slot_mapping of each sequence's last token; `there` is what its place in the cache gets."""
    cache, tables, slots, kv_len = memory.values()
    block_tokens = cache.shape[3]
    last = (kv_len.long() - 1).clamp(min=0)
    block = tables[slots.long(), last // block_tokens].long()
    live = kv_len > 0
    if there is not None:
        cache[block[live], :, :, last[live] % block_tokens] = there
    return torch.where(live, block * block_tokens + last % block_tokens, claimed).int()


MIXED = [1, 0, 16, 17, 255, 256, 257, 1000, 64, 0, 3001]


CASES = [
    *(_case(Size.SMALL, kind, Heads(6, 2, 32, 4), [3, 0, 9, 65]) for kind in DTYPES),
    _case(Size.SMALL, "f32", Heads(5, 1, 96, 5), [300, 1]),
    _case(Size.SMALL, "f32", Heads(20, 1, 80, 4), [3, 0, 9, 65]),
    _case(Size.SMALL, "f32", Heads(2, 2, 64, 8), [20, 290, 0, 5], window=7),
    _case(Size.SMALL, "f32", Heads(2, 2, 64, 8), [0, 0]),
    # Rows of chunks are padding to the decodes before them.
    *(_case(Size.SMALL, kind, Heads(2, 2, 64, 8), [3, 17, 0, 0], claimed=5) for kind in DTYPES),
    # Scores that a cap bends, sinks, and both; of one split, of several and of padding.
    *(_case(Size.SMALL, kind, Heads(6, 2, 32, 4), [3, 0, 9, 65], rule=CAPPED) for kind in DTYPES),
    *(
        _case(Size.SMALL, kind, Heads(6, 2, 32, 4), [3, 0, 9, 300], 0, 3, 5, rule)
        for kind in ("f32", "bf16")
        for rule in (SINKS, BOTH)
    ),
    *(
        _case(Size.SMALL, "f32", Heads(4, 2, 64, 8), [20, 530, 0, 5], window, rule=rule)
        for rule in (CAPPED, SINKS)
        for window in (7, 300)
    ),
    _case(Size.SMALL, "f32", Heads(4, 1, 256, 8), [20, 0, 300], 0, rule=CAPPED),
    # ALiBi: groups, heads of odd sizes, windows, and all at once.
    *(
        _case(Size.SMALL, kind, heads, [1, 0, 7, 8, 14, 530], window, 3, 5, rule, kv)
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
        _case(Size.SMALL, kind, heads, [1, 0, 7, 8, 14, 530], window, 3, 5, rule, kv, reads)
        for kind, heads, window, rule, kv, reads in [
            ("f32", Heads(6, 2, 32, 4), 0, Scoring(extent=5), PLAIN_KV, False),
            ("bf16", Heads(6, 2, 32, 4), 0, Scoring(extent=1000), PLAIN_KV, False),
            ("f32", Heads(5, 5, 80, 8), 7, Scoring(extent=7), PLAIN_KV, True),
            ("f32", Heads(4, 1, 112, 8), 0, Scoring(extent=300), "int4", False),
            ("f32", Heads(4, 2, 64, 8), 300, Scoring(3.0, True, True, extent=40), "int8", False),
        ]
    ),
    # Sinks of each query, alone and with biases.
    *(
        _case(Size.SMALL, kind, heads, [1, 0, 7, 8, 14, 530], window, 3, 5, rule, kv)
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
    # Aligned windows: queries at the beginning, inside and at the end of one.
    *(
        _case(Size.SMALL, kind, Heads(4, 2, 64, 8), [1, 0, 7, 8, 14, 530], window, 3, 5, rule, kv)
        for kind, window, rule, kv in [
            ("f32", 7, ALIGNED, PLAIN_KV),
            ("bf16", 300, ALIGNED, PLAIN_KV),
            ("f32", 6, Scoring(3.0, True, True), "int8"),
            ("f32", 0, ALIGNED, PLAIN_KV),
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
    # Llama 4 Scout, with shorter windows, of few sequences and of more than programs.
    _case(
        Size.FULL,
        "bf16",
        Heads(40, 8, 128, 16),
        [2000, 1024, 1025, *range(1, 900, 9)],
        1024,
        rule=ALIGNED,
    ),
    _case(Size.FULL, "bf16", Heads(40, 8, 128, 16), [9000, 8192, 5], 8192, rule=ALIGNED),
    # Gemma 4's full layers, and layers that read the cache of another one.
    *(
        _case(Size.SMALL, kind, Heads(4, 2, 512, 8), [20, 0, 300], kv=kv)
        for kind, kv in [("f32", PLAIN_KV), ("bf16", PLAIN_KV), ("f32", "int4"), ("f32", "e4m3")]
    ),
    *(
        _case(Size.SMALL, kind, heads, [1, 0, 20, 530], window, kv=kv, reads=True)
        for kind, heads, window, kv in [
            ("f32", Heads(4, 1, 512, 8), 0, PLAIN_KV),
            ("f32", Heads(6, 2, 32, 4), 0, PLAIN_KV),
            ("bf16", Heads(6, 2, 32, 4), 7, PLAIN_KV),
            ("f32", Heads(4, 2, 64, 8), 300, "int8"),
        ]
    ),
    *(
        _case(Size.FULL, kind, heads, MIXED, window, kv=kv, reads=reads)
        for kind, heads, window, kv, reads in [
            ("bf16", Heads(8, 1, 512, 16), 0, PLAIN_KV, False),
            ("bf16", Heads(8, 1, 512, 16), 0, PLAIN_KV, True),
            ("bf16", Heads(8, 1, 256, 16), 512, PLAIN_KV, True),
            ("bf16", Heads(32, 4, 512, 16), 0, PLAIN_KV, False),
            ("f16", Heads(16, 2, 512, 16), 0, PLAIN_KV, False),
            ("f32", Heads(8, 2, 512, 16), 0, PLAIN_KV, False),
            ("bf16", Heads(8, 2, 128, 16), 0, PLAIN_KV, True),
            *(("bf16", Heads(8, 2, 512, 16), 0, kv, True) for kv in QUANTIZED_KV),
            *(("bf16", Heads(8, 2, 512, 16), 0, kv, False) for kv in QUANTIZED_KV),
        ]
    ),
    # Caches of fewer bits: one split and several, head sizes that are no power of two, windows.
    *(
        _case(Size.SMALL, kind, Heads(6, 2, 32, 4), [3, 0, 9, 65], kv=kv)
        for kind in DTYPES
        for kv in QUANTIZED_KV
    ),
    *(_case(Size.SMALL, "f32", Heads(5, 1, 96, 5), [300, 1], kv=kv) for kv in QUANTIZED_KV),
    *(
        _case(Size.SMALL, "f32", Heads(2, 2, 64, 8), [20, 290, 0, 5], 7, 3, 5, rule, kv)
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
    *(_case(Size.FULL, "bf16", LLAMA_8B, [640, 5, 0], spare=70_000, kv=kv) for kv in QUANTIZED_KV),
    # Blocks of other sizes, groups of one head and of many, more pairs than programs.
    *(
        _case(Size.FULL, kind, heads, lengths, window, rule=rule, kv=kv)
        for kind, heads, lengths, window, rule in [
            ("f16", Heads(14, 2, 64, 64), MIXED, 300, PLAIN),
            ("f16", Heads(2, 2, 128, 32), [70_001, 5], 0, PLAIN),
            ("bf16", Heads(32, 2, 128, 8), [*range(1, 1100, 3), 0, 300, *[0] * 50], 0, SINKS),
        ]
        for kv in QUANTIZED_KV
    ),
    *(
        _case(Size.FULL, kind, Heads(8, 2, size, 16), MIXED, window, rule=rule)
        for kind, size, window, rule in SCORED
    ),
    # Gemma 2 9B, Gemma 3 1B, gpt-oss 20B.
    _case(Size.FULL, "bf16", Heads(16, 8, 256, 16), MIXED, rule=Scoring(50.0)),
    _case(Size.FULL, "bf16", Heads(4, 1, 256, 16), MIXED, window=512),
    _case(Size.FULL, "bf16", Heads(64, 8, 64, 16), MIXED, window=128, rule=SINKS),
    *(
        _case(Size.FULL, "bf16", Heads(8, 2, size, 16), [700, 5, 0, 0], claimed=5)
        for size in (64, 128)
    ),
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
    # Heads of 256 as in Qwen 3.5, Gemma 3 12B and others, with more pairs than programs.
    *(
        _case(Size.FULL, kind, Heads(heads, kv, 256, block), lengths, window, rule=rule)
        for kind, heads, kv, block, lengths, window, rule in [
            ("bf16", 16, 4, 16, MIXED, 0, PLAIN),
            ("bf16", 16, 8, 32, MIXED, 300, SINKS),
            ("f16", 16, 8, 32, MIXED, 300, PLAIN),
            ("bf16", 16, 1, 8, [*range(1, 1100, 3), 0, 300, *[0] * 50], 0, PLAIN),
            ("bf16", 16, 4, 16, [*range(1, 1100, 25), 0, 300, *[0] * 50, 7], 0, PLAIN),
            ("bf16", 8, 2, 16, [40_001, 8193, 8192, 5], 0, PLAIN),
        ]
    ),
    *(
        _case(Size.FULL, "bf16", Heads(8, 2, size, 16), [*MIXED, 0], window, reads=True)
        for size, window in [(64, 0), (128, 100), (256, 0), (256, 512)]
    ),
    # Pairs that are a share each, and such as are not for one that is long.
    _case(Size.FULL, "bf16", LLAMA_8B, list(range(512, 768, 8))),
    _case(Size.FULL, "bf16", LLAMA_1B, [0, *range(33, 1057, 32)]),
    _case(Size.FULL, "bf16", LLAMA_8B, [40] * 17, window=30),
    # More pairs than programs, some without keys, and padding behind.
    *(
        _case(Size.FULL, "bf16", heads, [*range(1, 1100, 25), 0, 300, *[0] * 50, 7, *[0] * 50])
        for heads in (LLAMA_8B, LLAMA_1B)
    ),
    _case(Size.FULL, "bf16", LLAMA_8B, [40, *[90] * 40, 5], window=70),
    # One key head, as of a rank of many; more sequences than a warp group has threads for.
    _case(Size.FULL, "bf16", Heads(4, 1, 128, 16), [*range(1, 300), *[0] * 20]),
    _case(Size.FULL, "bf16", Heads(8, 2, 64, 16), [*range(1, 601)]),
    *(_case(Size.FULL, "bf16", Heads(8, 2, size, 16), [0, 0, 0]) for size in (64, 128)),
    _case(Size.FULL, "bf16", LLAMA_8B, [2000, *range(300, 331)]),
    _case(Size.FULL, "bf16", LLAMA_8B, [70_001, 8193, 8192, 5]),
    _case(Size.FULL, "bf16", LLAMA_8B, [640, 5, 0], spare=70_000),
    _case(Size.BENCH, "bf16", LLAMA_8B, [1100] * 256),
    *(_case(Size.BENCH, "bf16", LLAMA_8B, [1100] * 256, kv=kv) for kv in QUANTIZED_KV),
    *(_case(Size.BENCH, "bf16", LLAMA_8B, [32000], kv=kv) for kv in QUANTIZED_KV),
    _case(Size.BENCH, "bf16", LLAMA_8B, [1100] * 212 + [0] * 44),
    _case(Size.BENCH, "bf16", LLAMA_8B, [8000] * 32),
    _case(Size.BENCH, "bf16", LLAMA_8B, [32000]),
    _case(Size.BENCH, "bf16", LLAMA_8B, list(range(100, 4100, 16))),
    _case(Size.BENCH, "bf16", LLAMA_8B, [8000] * 64, window=1024),
    _case(Size.BENCH, "bf16", LLAMA_8B, [640] * 32),
    _case(Size.BENCH, "bf16", LLAMA_8B, list(range(512, 768, 8))),
    _case(Size.BENCH, "bf16", LLAMA_8B, [640] * 16),
    _case(Size.BENCH, "bf16", LLAMA_8B, [384]),
    _case(Size.BENCH, "bf16", Heads(16, 8, 256, 16), [1100] * 256, rule=Scoring(50.0)),
    *(
        _case(Size.BENCH, "bf16", Heads(16, kv, 256, 16), lengths)
        for kv in (4, 8)
        for lengths in ([256], [640] * 32, [1100] * 256)
    ),
    _case(Size.BENCH, "bf16", Heads(32, 4, 512, 16), [1100] * 256),
    _case(Size.BENCH, "bf16", Heads(8, 1, 512, 16), [1100] * 256, reads=True),
    _case(Size.BENCH, "bf16", LLAMA_1B, [1100] * 256),
    _case(Size.BENCH, "bf16", LLAMA_1B, [1100] * 212 + [0] * 44),
    _case(Size.BENCH, "bf16", LLAMA_1B, [640] * 32),
    _case(Size.BENCH, "bf16", LLAMA_1B, [200]),
]
