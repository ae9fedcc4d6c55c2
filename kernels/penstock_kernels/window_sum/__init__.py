"""Windows of cached tokens, summed up with a weight for each element."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, INDEX, expect, expect_contiguous, expect_rank
from ..op import Op
from . import reference

_OP = Op("window_sum", reference.window_sum)


def window_sum(cache: Tensor, rows: Tensor, counts: Tensor, bias: Tensor, first: int) -> Tensor:
    """out[e] = sum over tokens n of softmax_n(gate[n] + bias[n]) value[n], each element by itself.

    The tokens of e are those of `rows`, the last `counts[e]` of them. They belong to H windows of M
    tokens, the newest last; a token of window h has its values and gates in the part h of the H
    parts of D columns that values have from the column `first` on, and gates behind them. Its bias
    is that of its place in its window, in the same part.

    Args: cache [R, W] of a float dtype, contiguous, W >= first + 2 H D; rows [E, H M] int32,
        contiguous; counts [E] int32, up to H M: 0 for what nobody reads; bias [M, H D] float32
        (float64 with a cache of float64), contiguous.
    Returns: [E, D] of the cache's dtype, contiguous; zeros where counts is 0.
    Precision: float32 inside, rounded once.
    Bytes moved: 2 D elements for each token that exists.
    Source: DeepSeek-AI, DeepSeek-V4, 2026, section 2.3.
    """
    expect_rank("cache", cache, "R, W")
    expect("cache", cache, tuple(cache.shape), FLOATS)
    expect_rank("rows", rows, "E, H M")
    expect("rows", rows, tuple(rows.shape), INDEX)
    expect("counts", counts, (len(rows),), INDEX)
    expect_rank("bias", bias, "M, H D")
    expect("bias", bias, tuple(bias.shape), (torch.promote_types(cache.dtype, torch.float32),))
    for name, tensor in (("cache", cache), ("rows", rows), ("counts", counts), ("bias", bias)):
        expect_contiguous(name, tensor)
    windows, rest = divmod(rows.shape[1], max(len(bias), 1))
    if not windows or rest or bias.shape[1] % windows:
        raise ValueError(
            f"rows has {rows.shape[1]} tokens; expected windows of {len(bias)}, whose number "
            f"divides {bias.shape[1]}"
        )
    if not 0 <= first <= cache.shape[1] - 2 * bias.shape[1]:
        raise ValueError(
            f"first is {first}; expected {2 * bias.shape[1]} columns behind it, of {cache.shape[1]}"
        )
    return _OP.on(cache)(cache, rows, counts, bias, first)
