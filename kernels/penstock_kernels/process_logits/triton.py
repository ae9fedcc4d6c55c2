"""Triton kernel of process_logits: one program per row and tile of tokens."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up
from ..sample.bits import splitmix
from .params import ALLOWED_BITS, GENERATED, FloatParam, IntParam, LogitsProcessorParams

TILE = 4096
WARPS = 8


@triton.jit
def _process_logits(
    logits,
    slots,
    previous,
    counts,
    floats,
    ints,
    bias_ids,
    bias_values,
    allowed,
    out,
    stride,
    vocabulary,
    biases,
    float_column,
    int_column,
    FLOAT_SLOT: tl.constexpr,
    INT_SLOT: tl.constexpr,
    GENERATED: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * TILE
    slot = tl.load(slots + row)
    floats += slot * FLOAT_SLOT
    ints += slot * INT_SLOT
    token = start + tl.arange(0, TILE)
    exists = token < vocabulary
    x = tl.load(logits + row * stride + token, exists, other=0.0).to(tl.float32)

    bias_ids += slot * biases
    bias_values += slot * biases
    for i in range(tl.load(ints)):
        id = tl.load(bias_ids + i)
        if (id >= start) & (id < start + TILE):
            x += tl.where(token == id, tl.load(bias_values + i), 0.0)

    repetition = tl.load(floats)
    frequency = tl.load(floats + float_column)
    presence = tl.load(floats + 2 * float_column)
    if (repetition != 1) | (frequency != 0) | (presence != 0):
        count = tl.load(counts + slot * vocabulary + token, exists, other=0).to(tl.int32)
        x = tl.where(count > 0, tl.where(x < 0, x * repetition, x / repetition), x)
        generated = count & GENERATED
        x -= frequency * generated.to(tl.float32)
        x -= tl.where(generated > 0, presence, 0.0)

    if tl.load(ints + int_column) > 0:
        width = (vocabulary + BITS - 1) // BITS
        bits = tl.load(allowed + slot * width + token // BITS, exists, other=0)
        x = tl.where((bits >> (token % BITS)) & 1 == 1, x, float("-inf"))

    delta = tl.load(floats + 3 * float_column)
    if delta != 0:
        key = tl.load(ints + 3 * int_column).to(tl.uint64, bitcast=True)
        last = tl.load(previous + row).to(tl.uint64, bitcast=True)
        state = splitmix(splitmix(key, tl.full((), 0, tl.uint64)), last)
        word = splitmix(state, token.to(tl.uint64)) >> 32
        x += tl.where(word.to(tl.int64) < tl.load(ints + 2 * int_column), delta, 0.0)
    tl.store(out + row * vocabulary + token, x, exists)


# The columns that the kernel reads by their numbers.
assert list(FloatParam) == [
    FloatParam.REPETITION,
    FloatParam.FREQUENCY,
    FloatParam.PRESENCE,
    FloatParam.DELTA,
]
assert list(IntParam) == [IntParam.BIASES, IntParam.RESTRICTED, IntParam.GREEN, IntParam.KEY]


def process_logits(
    logits: Tensor, slots: Tensor, previous: Tensor, params: LogitsProcessorParams
) -> Tensor:
    """See the public function."""
    rows, vocabulary = logits.shape
    out = torch.empty((rows, vocabulary), dtype=torch.float32, device=logits.device)
    if rows:
        _process_logits[(rows, divided_up(vocabulary, TILE))](
            logits,
            slots,
            previous,
            *params,
            out,
            logits.stride(0),
            vocabulary,
            params.bias_ids.shape[1],
            params.floats.stride(1),
            params.ints.stride(1),
            params.floats.stride(0),
            params.ints.stride(0),
            GENERATED,
            ALLOWED_BITS,
            TILE,
            num_warps=WARPS,
        )
    return out
