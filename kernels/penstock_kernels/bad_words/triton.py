"""Triton kernel of bad_words: one program per row. It writes only what it forbids."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from .reference import ANY

WARPS = 4


@triton.jit
def _bad_words(
    logits,
    slots,
    previous,
    counts,
    words,
    recent,
    stride,
    most,
    LENGTH: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    ANY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    count = tl.load(counts + slot)
    if count > 0:
        newest = tl.load(previous + row).to(tl.int32)
        recent += slot * (LENGTH - 2)
        infinity = tl.full((BLOCK,), float("-inf"), tl.float32).to(logits.dtype.element_ty)
        for start in range(0, count, BLOCK):
            word = start + tl.arange(0, BLOCK)
            exists = word < count
            place = words + (slot * most + word) * LENGTH
            matches = exists & (tl.load(place + LENGTH - 2, exists, other=ANY) == newest)
            for at in range(LENGTH - 2):
                expected = tl.load(place + at, exists, other=ANY)
                matches &= (expected == tl.load(recent + at)) | (expected == ANY)
            last = tl.load(place + LENGTH - 1, exists, other=0).to(tl.int64)
            tl.store(logits + row * stride + last, infinity, matches)
        # The others are read by all threads before any of them is written.
        places = tl.arange(0, SPAN)
        kept = tl.load(recent + places + 1, places < LENGTH - 3, other=0)
        tl.debug_barrier()
        moved = tl.where(places == LENGTH - 3, newest, kept)
        tl.store(recent + places, moved, places < LENGTH - 2)


def bad_words(
    logits: Tensor, slots: Tensor, previous: Tensor, counts: Tensor, words: Tensor, recent: Tensor
) -> None:
    """See the public function."""
    _, most, length = words.shape
    if len(slots):
        _bad_words[(len(slots),)](
            logits,
            slots,
            previous,
            counts,
            words,
            recent,
            logits.stride(0),
            most,
            LENGTH=length,
            SPAN=triton.next_power_of_2(length),
            BLOCK=min(128, triton.next_power_of_2(most)),
            ANY=ANY,
            num_warps=WARPS,
        )
