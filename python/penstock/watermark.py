"""The watermark detector for requests with `watermark`.

Source: Kirchenbauer et al., A Watermark for Large Language Models, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock._core import watermark_score

GAMMA = 0.5  # the server's defaults
KEY = 15485863


@dataclass(frozen=True)
class Score:
    """The result of a test.

    pairs: distinct pairs of neighbouring tokens. green: pairs whose second token is green. z:
    standard deviations above the mean of text without watermark. p: probability that text without
    watermark has at least this many green pairs.
    """

    pairs: int
    green: int
    z: float
    p: float


def detect(token_ids: Sequence[int], gamma: float = GAMMA, key: int = KEY) -> Score:
    """Tests `token_ids` for the watermark. Raises ValueError unless 0 < gamma < 1."""
    if not 0 < gamma < 1:
        raise ValueError(f"gamma must be between 0 and 1, not {gamma}")
    return Score(*watermark_score(list(token_ids), gamma, key))
