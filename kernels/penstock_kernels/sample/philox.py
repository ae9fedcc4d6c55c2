"""The counter-based generator of `sample`, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
LOW = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(key: Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Four 32-bit words per counter, as int64 in 0..2^32.

    Philox-4x32-10 of Salmon et al. 2011. `key` is 64 bits as int64; each counter word is int64 in
    0..2^32; shapes broadcast.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key & LOW, (key >> 32) & LOW
    for _ in range(ROUNDS):
        # The 64-bit product wraps into the sign bit; masking after the shift undoes that.
        product0, product2 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((product2 >> 32) & LOW) ^ c1 ^ k0, product2 & LOW
        c2, c3 = ((product0 >> 32) & LOW) ^ c3 ^ k1, product0 & LOW
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return [c0, c1, c2, c3]


def exponential(seed: Tensor, position: Tensor, vocabulary: int, dtype: torch.dtype) -> Tensor:
    """Exponential variates [S, vocabulary]: a function of (seed, position, id) alone.

    Token v uses word v % 4 of counter (v // 4, position low, position high, 0), key = seed. Small
    variates decide, so uniforms keep their full relative precision near 0: (word + 1/2) / 2^32.
    """
    counters = torch.arange((vocabulary + 3) // 4, device=seed.device)
    position = position[:, None]
    zero = torch.zeros((), dtype=torch.int64, device=seed.device)
    words = philox(seed[:, None], (counters, position & LOW, (position >> 32) & LOW, zero))
    word = torch.stack(words, dim=-1).flatten(1)[:, :vocabulary]
    uniform = word.to(dtype).mul_(2.0**-32).add_(2.0**-33).clamp_(max=1 - 2.0**-24)
    return torch.log1p(uniform.neg_()).neg_()
