"""Slopes of ALiBi."""

from __future__ import annotations


def alibi_slopes(heads: int, most: float = 8.0, scale: float = 1.0) -> tuple[float, ...]:
    """Returns what each head subtracts from a score per position between query and key: of n heads
    2 ** (-most i / n) for i from 1 to n, if n is a power of two. Otherwise those of the largest
    power of two below, then every second one of its double, from the first on. All times `scale`.

    Source: Press et al., Train Short, Test Long, 2021 (arXiv:2108.12409), and its code.
    """
    power: int = 2 ** (heads.bit_length() - 1)
    first = [2 ** (-most * i / power) for i in range(1, power + 1)]
    rest = [2 ** (-most * i / (2 * power)) for i in range(1, 2 * (heads - power), 2)]
    return tuple(scale * slope for slope in (*first, *rest))
