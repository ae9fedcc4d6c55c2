"""Logits processors: bias, penalties, allowed tokens, watermark."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference
from .params import ALLOWED_BITS, GENERATED, PROMPT, FloatParam, IntParam, LogitsProcessorParams

__all__ = [
    "ALLOWED_BITS",
    "GENERATED",
    "PROMPT",
    "FloatParam",
    "IntParam",
    "LogitsProcessorParams",
    "process_logits",
]

_OP = Op("process_logits", reference.process_logits)


def process_logits(
    logits: Tensor, slots: Tensor, previous: Tensor, params: LogitsProcessorParams
) -> Tensor:
    """Applies each row's logits processors, in this order; x is the logit of a token.

    bias: x + bias, for the tokens that have one.
    repetition r: x r if x < 0, else x / r, for tokens of the prompt and generated ones.
    frequency f, presence p: x - f c - p [c > 0], c = how often the token was generated.
    allowed: -inf for tokens that are not.
    watermark (gamma, delta, key): x + delta for green tokens. A token is green if 32 bits that
        SplitMix64 makes of (key, previous token, token) are below gamma 2^32.

    Args: logits [S, V] any float, rows may be strided; slots [S] int64, the row of `params` of each
        row; previous [S] int64, the token before the one to be chosen; params, see
        LogitsProcessorParams.
    Returns: [S, V] float32 (float64 of float64).
    Bytes moved: S V (bytes of a logit + 2 + 4), and an eighth of a byte with `allowed`.
    Source: repetition, Keskar and others, CTRL, 2019, as transformers has it; frequency and
        presence, OpenAI's API reference; watermark, Kirchenbauer and others, A Watermark for Large
        Language Models, 2023, hashing one token to the left. There the green list has exactly
        gamma V tokens; here each token is green with probability gamma, independently of the
        others, so that no token needs to know the list.
    """
    expect_rank("logits", logits, "S, V")
    expect_rows("logits", logits)
    rows, vocabulary = logits.shape
    expect("logits", logits, (rows, vocabulary), FLOATS)
    expect("slots", slots, (rows,), (torch.int64,))
    expect("previous", previous, (rows,), (torch.int64,))
    count, biases = len(params.counts), params.bias_ids.shape[1]
    words = -(-vocabulary // ALLOWED_BITS)
    expect("params.counts", params.counts, (count, vocabulary), (torch.int16,))
    expect("params.floats", params.floats, (count, len(FloatParam)), (torch.float32,))
    expect("params.ints", params.ints, (count, len(IntParam)), (torch.int64,))
    expect("params.bias_ids", params.bias_ids, (count, biases), (torch.int32,))
    expect("params.bias_values", params.bias_values, (count, biases), (torch.float32,))
    expect("params.allowed", params.allowed, (count, words), (torch.int32,))
    return _OP.on(logits)(logits, slots, previous, params)
