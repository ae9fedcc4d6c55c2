"""Tables of rotary position embeddings, in float32 and in transformers' order of operations.

The order matters: the same inverse frequencies to the last bit keep greedy tokens equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.config import RopeSpec

Numbers = Mapping[str, Any]


def rope_table(rope: RopeSpec, head_dim: int, positions: int) -> Tensor:
    """[positions, head_dim] float32 on the host: cos in the first half, sin in the second."""
    frequencies, factor = _KINDS[rope.kind](_plain(rope.theta, head_dim), rope)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos() * factor, angles.sin() * factor), dim=-1)


def _plain(theta: float, head_dim: int) -> Tensor:
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / (theta**steps)


def _default(plain: Tensor, _: RopeSpec) -> tuple[Tensor, float]:
    return plain, 1.0


def _linear(plain: Tensor, rope: RopeSpec) -> tuple[Tensor, float]:
    """Position interpolation (arXiv:2306.15595)."""
    return plain / rope.numbers["factor"], 1.0


def _llama3(plain: Tensor, rope: RopeSpec) -> tuple[Tensor, float]:
    """Llama 3.1: long wavelengths are slowed by `factor`, short ones kept, a ramp between."""
    numbers = rope.numbers
    factor, original = numbers["factor"], numbers["original_max_position_embeddings"]
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    wavelength = 2 * math.pi / plain
    slowed = torch.where(wavelength > original / low, plain / factor, plain)
    share = (original / wavelength - low) / (high - low)
    ramp = (1 - share) * slowed / factor + share * slowed
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(between, ramp, slowed), 1.0


def _yarn(plain: Tensor, rope: RopeSpec) -> tuple[Tensor, float]:
    """YaRN (arXiv:2309.00071): interpolates by the number of turns within the trained length."""
    numbers, dim = rope.numbers, 2 * len(plain)
    factor = numbers["factor"]
    low, high = _yarn_range(numbers, rope.theta, dim)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    powers = rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    mixed = (1.0 / (factor * powers)) * (1 - kept) + (1.0 / powers) * kept
    return mixed, _yarn_attention(numbers)


def _yarn_range(numbers: Numbers, theta: float, dim: int) -> tuple[float, float]:
    original = numbers["original_max_position_embeddings"]

    def turns_to_dim(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = turns_to_dim(numbers.get("beta_fast") or 32)
    high = turns_to_dim(numbers.get("beta_slow") or 1)
    if numbers.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high


def _yarn_attention(numbers: Numbers) -> float:
    factor, given = numbers["factor"], numbers.get("attention_factor")
    mscale, all_dim = numbers.get("mscale"), numbers.get("mscale_all_dim")

    def temperature(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if given is not None:
        return float(given)
    if mscale and all_dim:
        return temperature(mscale) / temperature(all_dim)
    return temperature(1.0)


_KINDS: dict[str, Callable[[Tensor, RopeSpec], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
