"""Cases of gated_delta_rule."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ..case import DTYPES, TOLERANCE, Case, Size, runs

DECODES = [(1, 1), (1, 2), (1, 9), (1, 300)]
CHUNKS = [(5, 5), (1, 4), (2, 90), (40, 140), (1, 1), (70, 70)]


# States add up errors of long runs; float16 has no small numbers for the second half of a number.
LEAST_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.0, torch.float16: 4e-3}


@dataclass(frozen=True)
class Layer:
    """Shape of a layer with the gated delta rule."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    channels: bool = False
    """Whether each channel of a key has a decay."""

    @property
    def decays(self) -> tuple[int, ...]:
        """The shape of a token's decays."""
        return (self.value_heads, self.key_dim) if self.channels else (self.value_heads,)


TINY, UNEVEN = Layer(2, 4, 16, 8), Layer(1, 3, 20, 12)
QWEN = Layer(16, 32, 128, 128)  # Qwen3-Next 80B-A3B, Qwen3.5 35B-A3B
OLMO = Layer(30, 30, 96, 192)  # OLMo Hybrid 7B
RANK = Layer(4, 12, 128, 128)  # Qwen3.5 27B on a rank of four
KIMI = Layer(32, 32, 128, 128, channels=True)  # Kimi Linear 48B-A3B
CHANNELS = Layer(3, 3, 20, 12, channels=True)


def _case(
    size: Size,
    kind: str,
    lengths: list[tuple[int, int]],
    layer: Layer,
    pad: int = 0,
    similar: bool = False,
    most: float = 1.0,
    bound: float = 0.0,
) -> Case:
    """With `similar`, keys differ little and hardly anything is forgotten: what a token adds then
    depends most on those before it."""
    dtype = DTYPES[kind]
    tokens = sum(n for n, _ in lengths)
    decodes = all(n == 1 for n, _ in lengths)
    rows = tokens + pad * decodes
    sizes = [layer.key_heads * layer.key_dim] * 2 + [layer.value_heads * layer.value_dim]

    def make(device: torch.device) -> dict[str, Any]:
        mixed = torch.randn(rows, sum(sizes), device=device, dtype=dtype)
        q, k, v = mixed.split(sizes, 1)
        q, k = (x.unflatten(1, (layer.key_heads, -1)) for x in (q, k))
        if similar:
            k.mul_(0.2).add_(1.0)
        v = v.unflatten(1, (layer.value_heads, -1))
        columns = [layer.value_heads, prod(layer.decays)]
        gates = torch.randn(rows, sum(columns), device=device, dtype=dtype)
        strength, decay = gates.split(columns, 1)
        if layer.channels and not similar:  # some channels keep all, others nothing
            decay.mul_(8.0)
        rates = 12 * torch.rand(layer.value_heads, device=device) + 0.01
        shape = (len(lengths) + 2, 1, layer.value_heads, layer.key_dim, layer.value_dim)
        return {
            "q": q,
            "k": k,
            "v": v,
            "strength": strength + (3.0 if similar else 0.0),
            "decay": decay.unflatten(1, layer.decays),
            "decay_log": rates.log() - (8.0 if similar else 0.0),
            "decay_bias": torch.rand(layer.decays, device=device) - 2,
            "states": torch.randn(shape, device=device),
            "runs": runs(lengths, device, pad=pad),
            "most": most,
            "bound": bound,
        }

    elements = 2 * layer.key_heads * layer.key_dim + 2 * layer.value_heads * layer.value_dim
    elements += prod(layer.decays) * layer.channels
    state = layer.value_heads * layer.key_dim * layer.value_dim * 4
    moved = tokens * elements * dtype.itemsize + 2 * len(lengths) * state
    shape = f"{layer.key_heads}:{layer.value_heads}x{layer.key_dim}x{layer.value_dim}"
    bounded = "-bounded" if bound else ""
    twice = "-twice" if most > 1 else ""
    own = "-channels" if layer.channels else ""
    more = f"{own}{f'-pad{pad}' if pad else ''}{'-similar' if similar else ''}{twice}{bounded}"
    name = f"{kind}-{len(lengths)}of{tokens}x{shape}{more}"
    tolerance = max(TOLERANCE[dtype], LEAST_TOLERANCE[dtype])
    return Case(name, size, make, tolerance, bytes_moved=moved if decodes else 0)


CASES = [
    *(_case(Size.SMALL, kind, DECODES, TINY, pad=2) for kind in DTYPES),
    *(_case(Size.SMALL, kind, CHUNKS, TINY, pad=1) for kind in DTYPES),
    _case(Size.SMALL, "f32", CHUNKS, UNEVEN),
    _case(Size.SMALL, "f32", DECODES, UNEVEN),
    _case(Size.SMALL, "f32", [(5, 5), (3, 9), (1, 4), (16, 16)], UNEVEN, pad=1),
    _case(Size.SMALL, "f16", [(64, 64), (96, 200), (33, 40)], UNEVEN),
    _case(Size.SMALL, "f16", CHUNKS, TINY, similar=True),
    _case(Size.SMALL, "f32", CHUNKS, TINY, similar=True),
    _case(Size.SMALL, "f32", DECODES, UNEVEN, most=2.0),
    _case(Size.SMALL, "f32", CHUNKS, UNEVEN, most=2.0),
    _case(Size.SMALL, "f16", [(64, 64), (96, 200), (33, 40)], TINY, most=2.0),
    *(_case(Size.SMALL, kind, DECODES, CHANNELS, pad=2) for kind in DTYPES),
    *(_case(Size.SMALL, kind, CHUNKS, CHANNELS, pad=1) for kind in DTYPES),
    _case(Size.SMALL, "f16", [(5, 5), (3, 9), (1, 4), (16, 16)], CHANNELS, pad=1),
    _case(Size.SMALL, "f16", [(64, 64), (96, 200), (33, 40)], CHANNELS),
    _case(Size.SMALL, "f16", [(40, 40), (17, 60)], Layer(1, 1, 128, 32, channels=True)),
    _case(Size.SMALL, "f16", CHUNKS, CHANNELS, similar=True),
    _case(Size.SMALL, "f32", CHUNKS, CHANNELS, similar=True),
    _case(Size.SMALL, "f32", DECODES, CHANNELS, pad=2, bound=-5.0),
    _case(Size.SMALL, "f32", CHUNKS, CHANNELS, pad=1, bound=-5.0),
    _case(Size.SMALL, "f16", CHUNKS, CHANNELS, similar=True, bound=-0.5),
    _case(Size.FULL, "bf16", [(1, 700)] * 70, QWEN),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], QWEN),
    _case(Size.FULL, "bf16", [(300, 300), (64, 128)], RANK, similar=True),
    _case(Size.FULL, "f16", CHUNKS, RANK),
    _case(Size.FULL, "f32", CHUNKS, Layer(2, 2, 64, 256)),
    _case(Size.FULL, "bf16", [(1, 700)] * 9, OLMO, most=2.0),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], OLMO, most=2.0),
    _case(Size.FULL, "bf16", [(1, 700)] * 70, KIMI),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], KIMI),
    _case(Size.FULL, "bf16", [(300, 300), (64, 128)], KIMI, similar=True),
    _case(Size.FULL, "bf16", [(1, 700)] * 9, KIMI, bound=-5.0),
    _case(Size.FULL, "bf16", [(700, 700), (1000, 3000), (3, 9)], KIMI, bound=-5.0),
    _case(Size.BENCH, "bf16", [(1, 700)], QWEN),
    _case(Size.BENCH, "bf16", [(1, 700)] * 64, QWEN),
    _case(Size.BENCH, "bf16", [(1, 700)] * 256, QWEN),
    _case(Size.BENCH, "bf16", [(8192, 8192)], QWEN),
    _case(Size.BENCH, "bf16", [(2048, 2048)] * 4, QWEN),
    _case(Size.BENCH, "bf16", [(1, 700)] * 64, KIMI),
    _case(Size.BENCH, "bf16", [(2048, 2048)] * 4, KIMI),
]
