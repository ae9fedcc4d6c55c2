"""Triton kernels of top_logprobs: the best of each tile of a row, then the best of all tiles.

A token's place in the order is one 64-bit integer: its logit's bits, in the order of the floats,
above its id's complement. So all keys of a row differ, and taking the largest `count` times needs
no sort and knows no ties.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # tokens of a program of the first kernel, as in sample
WARPS = 8
ROOM = 32  # keys of a tile that the second kernel has room for, or more: one variant for all counts
NONE = tl.constexpr(-(1 << 63))  # below every key


@triton.jit
def _key(x, token):
    """The place of `token` with logit x [float32] in the order, larger = earlier; int64. NaN is
    last."""
    bits = tl.where(x == 0, 0.0, tl.where(x == x, x, float("-inf"))).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def _logit(key):
    """The logit of a key."""
    ordered = (key >> 32).to(tl.int32)
    return tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["count"])
def _weigh_tile(
    logits, rows, targets, parts, ahead, best, stride, vocabulary, count, TILE: tl.constexpr
):  # fmt: skip
    """Per tile: largest logit and sum of exponentials below it, tokens ahead of the target, and
    the keys of the `count` best."""
    selected, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part = selected * tl.num_programs(1) + tile
    logits += tl.load(rows + selected) * stride
    target = tl.load(targets + selected)
    bound = _key(tl.load(logits + target).to(tl.float32), target.to(tl.int32))
    token = tile * TILE + tl.arange(0, TILE)
    exists = token < vocabulary
    x = tl.load(logits + token, exists, other=float("-inf")).to(tl.float32)
    peak = tl.max(x)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    tl.store(parts + part * 2, peak)
    tl.store(parts + part * 2 + 1, tl.sum(tl.exp(x - safe)))
    keys = tl.where(exists, _key(x, token), NONE)
    tl.store(ahead + part, tl.sum(tl.where(keys > bound, 1, 0)))
    for place in range(count):
        key = tl.max(keys)
        tl.store(best + part * count + place, key)
        keys = tl.where(keys == key, NONE, keys)


@triton.jit(do_not_specialize=["count"])
def _join_row(
    logits, rows, targets, parts, ahead, best, chosen, ranks, ids, found, stride, tiles, count,
    TILES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The row's answer from those of its tiles."""
    selected = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    part = selected * tiles + tile
    peak = tl.load(parts + part * 2, tile < tiles, other=float("-inf"))
    total = tl.load(parts + part * 2 + 1, tile < tiles, other=0.0)
    largest = tl.max(peak)
    normaliser = largest + tl.log(tl.sum(total * tl.exp(peak - largest)))
    logit = tl.load(logits + tl.load(rows + selected) * stride + tl.load(targets + selected))
    tl.store(chosen + selected, logit.to(tl.float32) - normaliser)
    tl.store(ranks + selected, 1 + tl.sum(tl.load(ahead + part, tile < tiles, other=0)))
    at = tl.arange(0, KEYS)
    keys = tl.load(best + selected * tiles * count + at, at < tiles * count, other=NONE)
    for place in range(count):
        key = tl.max(keys)
        tl.store(ids + selected * count + place, 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32))
        tl.store(found + selected * count + place, _logit(key) - normaliser)
        keys = tl.where(keys == key, NONE, keys)


def top_logprobs(
    logits: Tensor, rows: Tensor, targets: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See the public function."""
    selected, vocabulary = len(rows), logits.shape[1]
    tiles = triton.cdiv(vocabulary, TILE)

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty((selected, *shape), dtype=dtype, device=logits.device)

    parts, ahead = empty(torch.float32, tiles, 2), empty(torch.int32, tiles)
    best = empty(torch.int64, tiles, count)
    chosen, ranks = empty(torch.float32), empty(torch.int32)
    ids, found = empty(torch.int32, count), empty(torch.float32, count)
    if selected:
        given = logits, rows, targets, parts, ahead, best
        stride = logits.stride(0)
        _weigh_tile[(selected, tiles)](*given, stride, vocabulary, count, TILE, num_warps=WARPS)
        _join_row[(selected,)](
            *given,
            chosen,
            ranks,
            ids,
            found,
            stride,
            tiles,
            count,
            TILES=triton.next_power_of_2(tiles),
            KEYS=triton.next_power_of_2(tiles * max(count, ROOM)),
            num_warps=WARPS,
        )
    return chosen, ranks, ids, found
