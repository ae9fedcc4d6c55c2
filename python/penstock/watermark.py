"""Whether token ids bear the watermark of Kirchenbauer and others, A Watermark for Large Language
Models, 2023, as `watermark` of a request makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock._core import watermark_score

GAMMA = 0.5  # as the server has them
KEY = 15485863


@dataclass(frozen=True)
class Score:
    """What a text's tokens say.

    pairs: pairs of neighbouring tokens, each counted once. green: those whose second token is
    green. z: standard deviations above what a text without watermark has on average. p: probability
    that a text without watermark has so many green pairs, or more.
    """

    pairs: int
    green: int
    z: float
    p: float


def detect(token_ids: Sequence[int], gamma: float = GAMMA, key: int = KEY) -> Score:
    """Looks for the watermark in `token_ids`. Raises ValueError unless 0 < gamma < 1."""
    if not 0 < gamma < 1:
        raise ValueError(f"gamma must be between 0 and 1, not {gamma}")
    return Score(*watermark_score(list(token_ids), gamma, key))
