"""The parameters of the logits processors, as tensors with a row per slot."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

PROMPT = 1 << 14  # bit of a count: the token is in the prompt
GENERATED = PROMPT - 1  # bits of a count: how often the token was generated, at most this
ALLOWED_BITS = 32  # of a word of `allowed`


class FloatParam(IntEnum):
    """Columns of `LogitsProcessorParams.floats`."""

    REPETITION = 0  # 1 = off
    FREQUENCY = 1  # 0 = off
    PRESENCE = 2  # 0 = off
    DELTA = 3  # of the watermark; 0 = off


class IntParam(IntEnum):
    """Columns of `LogitsProcessorParams.ints`."""

    BIASES = 0  # entries of the row of `bias_ids` that count
    RESTRICTED = 1  # 1 if the row of `allowed` counts
    GREEN = 2  # a token is green if its 32 random bits are below this
    KEY = 3  # of the watermark


class LogitsProcessorParams(NamedTuple):
    """Rows [N] of sequences; all on one device."""

    counts: Tensor  # [N, V] int16: GENERATED and PROMPT bits of each token
    floats: Tensor  # [N, len(FloatParam)] float32, of any strides
    ints: Tensor  # [N, len(IntParam)] int64, of any strides
    bias_ids: Tensor  # [N, B] int32, each id once
    bias_values: Tensor  # [N, B] float32; -inf makes a token impossible
    allowed: Tensor  # [N, ceil(V / 32)] int32: bit v % 32 of word v // 32, least significant first
