"""Triton kernel of token_logprobs: one program per row, whose lanes each sum a part online."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 8192
WARPS = 32
STAGES = tl.constexpr(4)


@triton.jit
def _token_logprobs(logits, ids, out, stride, vocabulary, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    peak = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        column = at + tl.arange(0, TILE)
        x = tl.load(logits + column, column < vocabulary, other=float("-inf")).to(tl.float32)
        # A NaN is higher than nothing, and makes the total NaN.
        higher = tl.where(x > peak, x, peak)
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - safe) + tl.exp(x - safe)
        peak = higher
    largest = tl.max(peak)
    total = tl.sum(total * tl.exp(peak - largest))
    chosen = tl.load(logits + tl.load(ids + row)).to(tl.float32)
    tl.store(out + row, chosen - largest - tl.log(total))


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """See the public function."""
    rows, vocabulary = logits.shape
    out = torch.empty((rows,), dtype=torch.float32, device=logits.device)
    if rows:
        _token_logprobs[(rows,)](
            logits, ids, out, logits.stride(0), vocabulary, TILE, num_warps=WARPS
        )
    return out
