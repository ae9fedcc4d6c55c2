"""Log-probabilities of chosen tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("token_logprobs", reference.token_logprobs)


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """log_softmax(logits)[i, ids[i]] for each row i.

    Args: logits [S, V] any float, rows may be strided; ids [S] int64.
    Returns: [S] float32. NaN for a row that holds NaN or nothing but -inf.
    Bytes moved: S V elements. Precision: float32 inside.
    """
    expect_rank("logits", logits, "S, V")
    expect_rows("logits", logits)
    expect("logits", logits, tuple(logits.shape), FLOATS)
    expect("ids", ids, (logits.shape[0],), (torch.int64,))
    return _OP.on(logits)(logits, ids)
