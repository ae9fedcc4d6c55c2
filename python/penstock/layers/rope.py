"""Tables of rotary position embeddings, in float32 and in transformers' order of operations.

The order matters: the same inverse frequencies to the last bit keep greedy tokens equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.config import NTK, NTK_POWERS, RopeSpec, yarn_temperature

Numbers = Mapping[str, Any]


def rope_table(rope: RopeSpec | None, head_dim: int, positions: int) -> Tensor:
    """Returns [positions, head_dim] float32 on the host: cos in the first half, sin in the second.

    Dimensions that do not rotate have cos 1 and sin 0, in the order of `rope_order`; without RoPE
    that is all of them.
    """
    if rope is None:
        return torch.cat(
            (torch.ones(positions, head_dim // 2), torch.zeros(positions, head_dim // 2)), 1
        )
    dims = rope.dims(head_dim)
    powers = rope.theta ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)
    frequencies, factor = _KINDS[rope.kind](powers, rope, positions)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    still = torch.ones(positions, (head_dim - dims) // 2)
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return torch.cat((cos, still, sin, still * 0), dim=-1)


def rope_order(rope: RopeSpec | None, head_dim: int) -> list[int] | None:
    """Returns the permutation of a head's dimensions that pairs each with the one half a head away.

    The kernels rotate such pairs. Permuting queries and keys equally keeps their dot products.
    None if the checkpoint has this order already.
    """
    if rope is None:
        return None
    dims = rope.dims(head_dim)
    if dims == head_dim and not rope.interleaved and not rope.backwards:
        return None
    rest, half = list(range(dims, head_dim)), (head_dim - dims) // 2
    if rope.interleaved:
        first, second = list(range(0, dims, 2)), list(range(1, dims, 2))
    else:
        first, second = list(range(dims // 2)), list(range(dims // 2, dims))
    if rope.backwards:  # (b, a) turns forwards as (a, b) turns backwards
        first, second = second, first
    return [*first, *rest[:half], *second, *rest[half:]]


def _default(powers: Tensor, _: RopeSpec, __: int) -> tuple[Tensor, float]:
    return 1.0 / powers, 1.0


def _linear(powers: Tensor, rope: RopeSpec, _: int) -> tuple[Tensor, float]:
    """Position interpolation (arXiv:2306.15595)."""
    return 1.0 / powers / rope.numbers["factor"], 1.0


def _llama3(powers: Tensor, rope: RopeSpec, _: int) -> tuple[Tensor, float]:
    """Llama 3.1: divides low frequencies by `factor`, keeps high ones, interpolates between."""
    numbers, plain = rope.numbers, 1.0 / powers
    factor, original = numbers["factor"], numbers["original_max_position_embeddings"]
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    wavelength = 2 * math.pi / plain
    slowed = torch.where(wavelength > original / low, plain / factor, plain)
    share = (original / wavelength - low) / (high - low)
    ramp = (1 - share) * slowed / factor + share * slowed
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(between, ramp, slowed), 1.0


def _yarn(powers: Tensor, rope: RopeSpec, _: int) -> tuple[Tensor, float]:
    """YaRN (arXiv:2309.00071): interpolates by the number of turns within the trained length."""
    numbers, dim = rope.numbers, 2 * len(powers)
    factor = numbers["factor"]
    low, high = _yarn_range(numbers, rope.theta, dim)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
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
    if given is not None:
        return float(given)
    if mscale and all_dim:
        return yarn_temperature(factor, mscale) / yarn_temperature(factor, all_dim)
    return yarn_temperature(factor, 1.0)


def _longrope(powers: Tensor, rope: RopeSpec, positions: int) -> tuple[Tensor, float]:
    """LongRoPE (arXiv:2402.13753): a factor per pair of dimensions.

    All sequences use the long list of factors if the maximum length exceeds the original length,
    else the short one. Switching within a sequence would invalidate its cached keys.
    """
    numbers = rope.numbers
    original, factor = numbers["original_max_position_embeddings"], numbers["factor"]
    length = "long" if positions > original else "short"
    factors = numbers[f"{length}_factor"]
    given = numbers.get(f"{length}_mscale") or numbers.get("attention_factor")
    if given is None:
        given = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * powers), given


def _proportional(powers: Tensor, rope: RopeSpec, _: int) -> tuple[Tensor, float]:
    """Gemma 4: only the first pairs of a head turn, at the frequencies of a whole head."""
    turning = int(rope.numbers["share"] * 2 * len(powers) // 2)
    frequencies = 1.0 / powers
    frequencies[turning:] = 0
    return frequencies / rope.numbers.get("factor", 1.0), 1.0


def _dynamic(powers: Tensor, rope: RopeSpec, positions: int) -> tuple[Tensor, float]:
    """Dynamic NTK (https://arxiv.org/abs/2309.00071, appendix B.3): a larger base for longer
    sequences.

    All sequences have the base of the longest one that the server allows: a base that grew within
    a sequence would invalidate its cached keys, and one per sequence those that sequences share.
    """
    original, dims = rope.numbers["original_max_position_embeddings"], 2 * len(powers)
    if positions <= original:
        return 1.0 / powers, 1.0
    if rope.kind == NTK:
        factor = rope.numbers["factor"]
        stretch = factor * positions / original - (factor - 1)
    else:
        stretch = 2.0 ** math.ceil(math.log2(positions / original) + 1) - 1
    base = rope.theta * stretch ** (dims / (dims - 2))
    return 1.0 / (base ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)), 1.0


_KINDS: dict[str, Callable[[Tensor, RopeSpec, int], tuple[Tensor, float]]] = {
    "default": _default,
    NTK: _dynamic,
    NTK_POWERS: _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}


def rotate_last(x: Tensor, angles: Tensor, backwards: bool = False) -> None:
    """Rotates the last R of x [T, heads, D] in place, neighbours together, by angles [T, R]:
    cosines, then sines. What is `backwards` rotates by the negative angle."""
    cos, sin = angles[:, None].chunk(2, -1)
    sin = -sin if backwards else sin
    last = x[..., -angles.shape[1] :]
    first, second = last[..., 0::2], last[..., 1::2]
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -1)
    last.copy_(turned.flatten(-2))


def turned(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotates the first n elements of heads [T, heads, size]; cos_sin [T, n] has a row for each
    token."""
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos_sin[:, None].to(wide).chunk(2, -1)
    halves, rest = x.tensor_split([cos_sin.shape[1]], -1)
    a, b = halves.to(wide).chunk(2, -1)
    rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
    return torch.cat((rotated, rest), -1)
