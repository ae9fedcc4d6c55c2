"""Logprobs of a given token, and of the most likely tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("top_logprobs", reference.top_logprobs)


def top_logprobs(
    logits: Tensor, rows: Tensor, targets: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns logprobs, under log_softmax of a row, of a token and of the row's most likely tokens.

    Tokens are ranked by logit; of equal ones the lower id comes first, as in `sample`. So rank 1
    is the token that a greedy choice takes, on every implementation.

    Args: logits [R, V] any float, rows may be strided; rows [N] int64 into R, any of them any
        number of times; targets [N] int64, a token of each; count, 0 to V: how many of the
        most likely tokens to return.
    Returns: log-probabilities of the targets [N] float32; their ranks [N] int32, 1 = the
        likeliest; ids of the likeliest tokens [N, count] int32, in order; their log-probabilities
        [N, count] float32. Ids of tokens with logit -inf are any; NaN ranks as -inf.
        Log-probabilities are NaN under a row that holds NaN or nothing but -inf.
    Precision: float32 inside.
    Bytes moved: N V elements of logits, once.
    """
    expect_rank("logits", logits, "R, V")
    expect_rows("logits", logits)
    expect("logits", logits, tuple(logits.shape), FLOATS)
    expect_rank("rows", rows, "N")
    expect("rows", rows, tuple(rows.shape), (torch.int64,))
    expect("targets", targets, tuple(rows.shape), (torch.int64,))
    if not 0 <= count <= logits.shape[1]:
        raise ValueError(f"count is {count}; expected 0 to {logits.shape[1]}, the vocabulary")
    return _OP.on(logits)(logits, rows, targets, count)
