"""The random numbers of `sample`, in torch: a function of (seed, position, token id) alone."""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(bits: int) -> int:
    """A 64-bit pattern as int64, the widest integer that torch computes with."""
    return bits - (1 << 64) if bits >> 63 else bits


STEP = _signed(0x9E3779B97F4A7C15)
GROUP = 4096  # tokens with adjacent ids; a draw first chooses one group
GROUPS = 1 << 32
MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def splitmix(state: Tensor, index: Tensor) -> Tensor:
    """Output number `index`, from 0, of the SplitMix64 generator with this state, as int64.

    Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014. Shapes broadcast.
    """
    z = state + (index + 1) * STEP
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        z = z.bitwise_xor_(_shifted(z, shift)).mul_(multiplier)
    return z.bitwise_xor_(_shifted(z, 31))


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits with zeros coming in, as on an unsigned integer."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def exponential(seed: Tensor, position: Tensor, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Exponential variates [S, n] of `numbers` [n] or [S, n] int64.

    Seed and position pick the state of a generator, whose output number v belongs to token v, and
    number GROUPS + g to group g. Small variates decide, so uniforms keep their full relative
    precision near 0: (word + 1/2) / 2^32.
    """
    zero = torch.zeros((), dtype=torch.int64, device=seed.device)
    state = splitmix(splitmix(seed, zero), position)
    word = _shifted(splitmix(state[:, None], numbers), 32)
    uniform = word.to(dtype).mul_(2.0**-32).add_(2.0**-33).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()
