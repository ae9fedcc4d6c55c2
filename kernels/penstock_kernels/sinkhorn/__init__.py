"""A doubly stochastic matrix of each token, from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import expect, expect_contiguous, expect_rank
from ..op import Op
from . import reference

_OP = Op("sinkhorn", reference.sinkhorn)


def sinkhorn(logits: Tensor, rounds: int, eps: float) -> Tensor:
    """Divides the rows and columns of positive matrices by their sums, in turns.

    A matrix begins as the softmax of each row of the logits, plus eps. The first of the `rounds`
    divides columns alone, each other one rows and then columns; eps is added to each sum.

    Args: logits [T, N, N] float32 or float64, contiguous; rounds: at least 1.
    Returns: [T, N, N], as `logits`. Columns add up to 1, as far as eps lets them; rows nearly do.
    Precision: that of the logits.
    Bytes moved: 2 T N^2 elements.
    Source: Sinkhorn and Knopp, Concerning nonnegative matrices and doubly stochastic matrices,
        1967; Xie et al., mHC: Manifold-Constrained Hyper-Connections, 2025 (arXiv:2512.24880),
        section 4.2.
    """
    expect_rank("logits", logits, "T, N, N")
    tokens, size, _ = logits.shape
    expect("logits", logits, (tokens, size, size), (torch.float32, torch.float64))
    expect_contiguous("logits", logits)
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; expected 1 or more")
    return _OP.on(logits)(logits, rounds, eps)
