"""Cases of index_blocks.

Numbers are small integers, whose scores are exact in any order of the sums and often equal: the
choice is compared without a tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..case import DTYPES, Case, Heads, Index, Size, paged


@dataclass(frozen=True)
class Blocks:
    """What is chosen in a case."""

    tokens: int
    """Of a block."""
    most: int
    """Blocks of a query and head."""
    recent: int
    """Blocks that are chosen in any case."""


def block_arguments(
    shape: Index,
    blocks: Blocks,
    lengths: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    block_tokens: int = 16,
    kv_heads: int = 1,
    prompt: bool = False,
) -> dict[str, Any]:
    """Random tensors for sequences of these lengths; 0 = a padding row. `prompt`: the lengths are
    what queries of one sequence see."""
    heads = Heads(shape.heads, kv_heads, shape.row, block_tokens)
    memory = paged([max(lengths)] if prompt else lengths, heads, dtype, device)
    if prompt:
        memory["slots"] = memory["slots"].expand(len(lengths)).contiguous()
        memory["kv_len"] = torch.tensor(lengths, dtype=torch.int32, device=device)
    memory["kv_cache"] = memory["kv_cache"][:, :1].mul(2).round().clamp(-3, 3).contiguous()
    q = torch.randint(-2, 3, (len(lengths), shape.heads, shape.size), device=device)
    chosen = (len(lengths), shape.heads, blocks.most)
    return {
        "q": q.to(dtype),
        **memory,
        "chosen": torch.full(chosen, -7, dtype=torch.int32, device=device),
        "block": blocks.tokens,
        "recent": blocks.recent,
    }


def _case(
    size: Size,
    kind: str,
    shape: Index,
    blocks: Blocks,
    lengths: Sequence[int],
    block_tokens: int = 16,
    kv_heads: int = 1,
    prompt: bool = False,
) -> Case:
    dtype = DTYPES[kind]

    def make(device: torch.device) -> dict[str, Any]:
        sizes = block_tokens, kv_heads, prompt
        return block_arguments(shape, blocks, lengths, dtype, device, *sizes)

    shown = "+".join(str(length) for length in lengths[:4])
    more = f"+{len(lengths) - 4}more" if len(lengths) > 4 else ""
    name = f"{kind}-{shape.heads}x{shape.size}in{kv_heads}x{shape.row}-page{block_tokens}"
    name += f"-top{blocks.most}of{blocks.tokens}-recent{blocks.recent}-{shown}{more}"
    name += "-prompt" if prompt else ""
    work = 2 * sum(lengths) * shape.heads * shape.size
    return Case(name, size, make, 0.0, operations=work)


TINY, FEW = Index(2, 24, 8, 60), Blocks(8, 3, 1)
M3, SIXTEEN = Index(4, 128, 64, 384), Blocks(128, 16, 1)

CASES = [
    *(_case(Size.SMALL, kind, TINY, FEW, [3, 0, 25, 24, 65], 4, 2) for kind in DTYPES),
    _case(Size.SMALL, "f32", TINY, Blocks(6, 4, 2), [40, 6, 7, 24, 25], 8),
    _case(Size.SMALL, "f32", TINY, Blocks(20, 2, 0), [70, 1, 200], 5),
    _case(Size.SMALL, "f32", TINY, Blocks(70, 2, 2), [70, 400, 141], 16),
    _case(Size.SMALL, "f32", Index(17, 16, 8, 16), Blocks(2, 30, 1), [700, 59, 61], 32),
    _case(Size.SMALL, "f32", TINY, FEW, [0, 0], 4),
    _case(Size.SMALL, "f32", TINY, FEW, [*range(20, 40), 0], 4, prompt=True),
    *(_case(Size.FULL, kind, M3, SIXTEEN, [1, 0, 2048, 2049, 9000], 16, 4) for kind in DTYPES),
    *(_case(Size.FULL, kind, M3, SIXTEEN, [5000, 2177], 128, 2) for kind in DTYPES),
    _case(Size.FULL, "bf16", M3, SIXTEEN, [*range(1, 9000, 30)], prompt=True),
    _case(Size.FULL, "bf16", M3, SIXTEEN, [70_001, 5]),
    _case(Size.BENCH, "bf16", M3, SIXTEEN, [8192] * 32, kv_heads=4),
    _case(Size.BENCH, "bf16", M3, SIXTEEN, [100_000], kv_heads=4),
    _case(Size.BENCH, "bf16", M3, SIXTEEN, [*range(4096, 8192)], kv_heads=4, prompt=True),
]
