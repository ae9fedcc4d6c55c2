"""Triton kernel of apply_mask: one program per masked row and tile of the vocabulary."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

TILE = 4096


# Rows and masks lie one after the other, at any place: one variant for all of them.
@triton.jit(do_not_specialize_on_alignment=["rows", "mask"])
def _mask_tile(logits, rows, mask, row_stride, vocab, words, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    row = tl.load(rows + place).to(tl.int64)
    # 32 neighbours read the same word: one transaction.
    word = tl.load(mask + place.to(tl.int64) * words + token // 32, inside, other=-1)
    forbidden = ((word >> (token % 32)) & 1) == 0
    infinity = tl.full((BLOCK,), float("-inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * row_stride + token, infinity, inside & forbidden)


def apply_mask(logits: Tensor, rows: Tensor, mask: Tensor) -> None:
    """See the public function."""
    count, vocab = len(rows), logits.shape[-1]
    if count:
        block = min(TILE, triton.next_power_of_2(vocab))
        grid = (count, triton.cdiv(vocab, block))
        _mask_tile[grid](
            logits, rows, mask, logits.stride(0), vocab, mask.shape[1], BLOCK=block, num_warps=4
        )
