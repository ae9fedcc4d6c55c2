"""Hashes of n-grams: which rows of a table belong to a token and those before it (Qwen4-Exp).

A hash multiplies each id by an odd factor, combines the products by exclusive or, and takes the
remainder by a prime number of rows (after arXiv:2601.07372, Engram).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, islice

import torch
from torch import Tensor

from penstock.config import NgramSpec

WORD = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
SEED_STEP = 10007  # between the seeds of layers


def mixed(value: int) -> int:
    """A random-looking word from a word: splitmix64 (Steele et al., Fast Splittable Pseudorandom
    Number Generators, 2014)."""
    value = (value + GAMMA) & WORD
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ value >> shift) * factor & WORD
    return value ^ value >> 31


def factors(spec: NgramSpec, vocab: int) -> list[int]:
    """The odd factor of the token itself, of the one before it, and so on. No product with an id
    below `vocab` exceeds 63 bits."""
    bound = max(((1 << 63) - 1) // vocab // 2, 1)
    seed = spec.seed + SEED_STEP * spec.ordinal
    return [
        2 * (mixed(seed + GAMMA * (before + 1) & WORD) % bound) + 1 for before in range(spec.order)
    ]


def table_sizes(spec: NgramSpec) -> list[int]:
    """The rows of each hash: primes from the base on. No two hashes of the model have the same."""
    earlier = spec.ordinal * spec.tables
    return list(islice(_primes(spec.base), earlier, earlier + spec.tables))


def padded_rows(spec: NgramSpec) -> int:
    """Rows of the table with those that no hash yields."""
    return -(-sum(table_sizes(spec)) // spec.divisor) * spec.divisor


def _primes(least: int) -> Iterator[int]:
    def is_prime(number: int) -> bool:
        return number > 1 and all(number % by for by in range(2, math.isqrt(number) + 1))

    return filter(is_prime, count(least))


class NgramHash:
    """The rows of each token."""

    def __init__(self, spec: NgramSpec, vocab: int, device: torch.device) -> None:
        sizes = table_sizes(spec)
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self.order = spec.order
        self.factors = torch.tensor(factors(spec, vocab), device=device)
        by_order = torch.tensor([sizes, starts], device=device).view(2, spec.order - 1, -1)
        self.sizes, self.starts = by_order.unbind()

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [T, order] int64, each token's own first, then those before it -> rows [T, tables]
        int64: all hashes of two tokens first, then of three, and so on."""
        products = ids * self.factors
        found, word = [], products[:, 0]
        for before in range(1, self.order):
            word = word ^ products[:, before]
            found.append(word[:, None] % self.sizes[before - 1] + self.starts[before - 1])
        return torch.cat(found, 1)
