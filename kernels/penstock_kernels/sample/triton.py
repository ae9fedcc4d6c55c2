"""Triton kernels of sample: thresholds of random rows, a choice per tile, and the row's choice.

Thresholds are found on the 32 bits of a logit, two bits a pass from the top: the largest bit
pattern at or above which the kept count (top_k) or probability (top_p) still lies. No sort.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tokens of a program that chooses, and its warps. On an H200, 256 greedy and 256 random rows of
# 128,256 bfloat16 logits: 61 and 217 us; with (2048, 4) 54 and 219, with (8192, 16) 92 and 264.
TILE = 4096
CHOICE_WARPS = 8

# Tokens of a step of a pass over a row, and its warps. One row with top_k and top_p: 308 us; with
# (4096, 16) 355, with (4096, 8) 412, with (16384, 32) 337.
PASS_TILE = 8192
PASS_WARPS = 32

# Loads in flight in the passes over a row.
STAGES = tl.constexpr(4)

# Two-bit digits in which the keys of a dtype can differ; further bits are all zero or all one.
DIGITS = {torch.bfloat16: 8, torch.float16: 10, torch.float32: 16}


@triton.jit
def _ordered(x):
    """Bits of float32 as uint32 in the order of the floats; both zeros are one."""
    bits = tl.where(x == 0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _row_tile(logits, at, vocabulary, TILE: tl.constexpr):
    column = at + tl.arange(0, TILE)
    return tl.load(logits + column, column < vocabulary, other=float("-inf")).to(tl.float32)


@triton.jit
def _weight(x, key, floor, largest, scale, MASS: tl.constexpr):
    """What a token counts: 1, or its probability up to a factor if it is not below `floor`."""
    if MASS:
        return tl.where(key >= floor, tl.exp2((x - largest) * scale), 0.0)
    return tl.where(x == x, 1.0, 0.0)


@triton.jit
def _search(
    logits,
    vocabulary,
    floor,
    largest,
    scale,
    target,
    MASS: tl.constexpr,
    DIGITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The largest key at or above which tokens of weight `target` lie."""
    found = tl.full((), 0, tl.uint32)
    step = tl.full((), 1 << 30, tl.uint32)
    for _digit in range(DIGITS):
        one = tl.zeros((TILE,), tl.float32)
        two = tl.zeros((TILE,), tl.float32)
        three = tl.zeros((TILE,), tl.float32)
        for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
            x = _row_tile(logits, at, vocabulary, TILE)
            key = _ordered(x)
            weight = _weight(x, key, floor, largest, scale, MASS)
            one += tl.where(key >= found + step, weight, 0.0)
            two += tl.where(key >= found + 2 * step, weight, 0.0)
            three += tl.where(key >= found + 3 * step, weight, 0.0)
        reached = (tl.sum(one) >= target).to(tl.uint32)
        reached += (tl.sum(two) >= target).to(tl.uint32)
        reached += (tl.sum(three) >= target).to(tl.uint32)
        found += reached * step
        step = step >> 2
    return found


@triton.jit
def _thresholds(
    logits,
    temperatures,
    top_ks,
    top_ps,
    largests,
    thresholds,
    stride,
    vocabulary,
    DIGITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Per random row: its largest logit, and the key below which tokens are dropped."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    if temperature <= 0:
        return
    logits += row * stride
    peak = tl.full((TILE,), float("-inf"), tl.float32)
    for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
        peak = tl.maximum(peak, _row_tile(logits, at, vocabulary, TILE))
    largest = tl.max(peak)
    # Finite even for the tiniest temperature, so that the largest logit, times 0, weighs 1.
    scale = tl.minimum(1.4426950408889634 / temperature, 1.0e37)
    floor = tl.full((), 0, tl.uint32)
    top_k = tl.load(top_ks + row)
    if (top_k > 0) & (top_k < vocabulary):
        count = top_k.to(tl.float32)
        floor = _search(logits, vocabulary, floor, largest, scale, count, False, DIGITS, TILE)
    top_p = tl.load(top_ps + row)
    if top_p < 1:
        mass = tl.zeros((TILE,), tl.float32)
        for at in tl.range(0, vocabulary, TILE, num_stages=STAGES):
            x = _row_tile(logits, at, vocabulary, TILE)
            mass += _weight(x, _ordered(x), floor, largest, scale, True)
        target = tl.sum(mass) * top_p
        floor = _search(logits, vocabulary, floor, largest, scale, target, True, DIGITS, TILE)
    tl.store(largests + row, largest)
    tl.store(thresholds + row, floor.to(tl.int32, bitcast=True))


@triton.jit
def _splitmix(state, index):
    """See noise.splitmix; on uint64."""
    z = state + (index + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _gumbel(seed, position, token):
    """Gumbel noise of tokens: minus the logarithm of noise.exponential."""
    seed_state = _splitmix(seed.to(tl.uint64, bitcast=True), tl.full((), 0, tl.uint64))
    state = _splitmix(seed_state, position.to(tl.uint64, bitcast=True))
    word = (_splitmix(state, token.to(tl.uint64)) >> 32).to(tl.uint32)
    # A power of two times a float rounds nowhere, so both implementations see the same uniform.
    uniform = word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    uniform = tl.minimum(uniform, 0.99999994)
    # log1p(-u) without its library call: the rounding of 1 - u cancels in the quotient.
    rest = 1.0 - uniform
    curved = tl.where(rest == 1.0, 1.0, tl.log(rest) / tl.where(rest == 1.0, 1.0, rest - 1.0))
    return -tl.log(uniform * curved)


@triton.jit
def _choose_in_tile(
    logits,
    temperatures,
    seeds,
    positions,
    largests,
    thresholds,
    parts,
    choices,
    stride,
    vocabulary,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * TILE
    token = first + tl.arange(0, TILE)
    x = _row_tile(logits + row * stride, first, vocabulary, TILE)
    peak = tl.max(x)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp(x - safe))
    score = x
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        threshold = tl.load(thresholds + row).to(tl.uint32, bitcast=True)
        score = (x - tl.load(largests + row)) / temperature
        score += _gumbel(tl.load(seeds + row), tl.load(positions + row), token)
        score = tl.where(_ordered(x) >= threshold, score, float("-inf"))
    best = tl.max(score)
    # The minimum is the lowest id of equals; it stays an id even where NaN equals nothing.
    choice = tl.min(tl.where(score == best, token, vocabulary - 1))
    part = (row * tl.num_programs(1) + tl.program_id(1)) * 3
    tl.store(parts + part, best)
    tl.store(parts + part + 1, peak)
    tl.store(parts + part + 2, total)
    tl.store(choices + row * tl.num_programs(1) + tl.program_id(1), choice)


@triton.jit
def _choose_in_row(
    logits, parts, choices, ids, logprobs, stride, vocabulary, tiles, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, BLOCK)
    exists = tile < tiles
    part = parts + (row * tiles + tile) * 3
    score = tl.load(part, exists, other=float("-inf"))
    choice = tl.load(choices + row * tiles + tile, exists, other=vocabulary - 1)
    chosen = tl.min(tl.where(score == tl.max(score), choice, vocabulary - 1))
    peak = tl.load(part + 1, exists, other=float("-inf"))
    total = tl.load(part + 2, exists, other=0)
    largest = tl.max(peak)
    normaliser = largest + tl.log(tl.sum(total * tl.exp(peak - largest)))
    tl.store(ids + row, chosen.to(tl.int64))
    logit = tl.load(logits + row * stride + chosen).to(tl.float32)
    tl.store(logprobs + row, logit - normaliser)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """See the public function."""
    rows, vocabulary = logits.shape
    tiles = triton.cdiv(vocabulary, TILE)

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty((rows, *shape), dtype=dtype, device=logits.device)

    ids, logprobs = empty(torch.int64), empty(torch.float32)
    largests, thresholds = empty(torch.float32), empty(torch.int32)
    parts, choices = empty(torch.float32, tiles, 3), empty(torch.int32, tiles)
    stride = logits.stride(0)
    if rows:
        _thresholds[(rows,)](
            logits,
            temperature,
            top_k,
            top_p,
            largests,
            thresholds,
            stride,
            vocabulary,
            DIGITS[logits.dtype],
            PASS_TILE,
            num_warps=PASS_WARPS,
        )
        _choose_in_tile[(rows, tiles)](
            logits,
            temperature,
            seed,
            position,
            largests,
            thresholds,
            parts,
            choices,
            stride,
            vocabulary,
            TILE,
            num_warps=CHOICE_WARPS,
        )
        _choose_in_row[(rows,)](
            logits,
            parts,
            choices,
            ids,
            logprobs,
            stride,
            vocabulary,
            tiles,
            BLOCK=triton.next_power_of_2(tiles),
            num_warps=1,
        )
    return ids, logprobs
