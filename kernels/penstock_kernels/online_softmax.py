"""What both attention kernels share: one block of keys folded into a running softmax."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from .kv_quantization_triton import load_rows

# Finite, so that rows which have seen no key yet subtract it without a NaN.
LOWEST = tl.constexpr(-1.0e38)
LOG2_E = 1.4426950408889634
_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def scored(products, scale, softcap, CAPPED: tl.constexpr):
    """Scores, times log2(e), of products of queries and keys.

    `scale` and `softcap` are `constants`: with tanh(x) = 1 - 2 / (1 + exp(2 x)), one exponential
    and one division are the soft cap.
    """
    if CAPPED:
        return softcap - 2 * softcap / (1 + tl.exp2(products * scale))
    else:  # noqa: RET505
        return products * scale


@triton.jit
def with_sink(total, peak, sinks, query_head, exists, SINKS: tl.constexpr):
    """Sums of weights with those of the sinks of `query_head`, against the same `peak`."""
    if SINKS:
        sink = tl.load(sinks + query_head, exists, other=float("-inf")).to(tl.float32)
        return total + tl.exp2(sink * _LOG2_E - peak)
    else:  # noqa: RET505
        return total


@triton.jit
def log_total(total, peak):
    """The natural logarithm of a row's sum of exponentials; minus infinity if it saw no key.

    `total` is the sum against `peak`, which is scaled by log2(e).
    """
    seen = total > 0
    return tl.where(seen, (peak + tl.log2(tl.where(seen, total, 1.0))) / _LOG2_E, float("-inf"))


@triton.jit
def first_seen(position, window, ALIGNED: tl.constexpr):
    """The first key that a query at `position` sees, of a window that is not unlimited.

    Queries without a sequence are at -1; theirs is 0.
    """
    if ALIGNED:
        position = tl.maximum(position, 0)
        return position // window * window
    else:  # noqa: RET505
        return tl.maximum(position + 1 - window, 0)


@triton.jit
def bias_of(
    biases, token, query_head, position, exists, kv_heads,
    GROUP: tl.constexpr, ALIBI: tl.constexpr, EXTENT: tl.constexpr,
):  # fmt: skip
    """What `biased` takes of rows [M]: the heads `query_head` of queries of `token`, at `position`.

    With ALIBI, `biases` are the slopes of all heads. With an EXTENT, they are rel_bias [tokens,
    heads, EXTENT]; rows that do not exist precede all keys then.
    """
    if EXTENT:
        row = token.to(tl.int64) * (kv_heads * GROUP) + query_head
        return biases + row * EXTENT, tl.where(exists, position, -1)
    elif ALIBI:  # noqa: RET505
        slope = tl.load(biases + query_head, exists, other=0).to(tl.float32) * _LOG2_E
        return slope, position
    else:
        return 0.0, position


@triton.jit
def with_nearest_bias(
    score, biases, token, kv_heads, head, row, GROUP: tl.constexpr, EXTENT: tl.constexpr
):
    """Scores [M], times log2(e), of the key at the query's own position, with their biases.

    `row` [M] are heads of the group. ALiBi adds nothing there.
    """
    if EXTENT:
        at = (token.to(tl.int64) * kv_heads + head) * GROUP + row
        bias = tl.load(biases + at * EXTENT, row < GROUP, other=0)
        return score + bias.to(tl.float32) * _LOG2_E
    else:  # noqa: RET505
        return score


@triton.jit
def biased(scores, bias, key, ALIBI: tl.constexpr, EXTENT: tl.constexpr):
    """Scores [M, N], times log2(e), of the keys at positions `key` [N], with their biases: `bias` =
    `bias_of` the rows."""
    if ALIBI:
        slope, position = bias
        scores += slope[:, None] * (key[None, :] - position[:, None]).to(tl.float32)
    if EXTENT:
        row, position = bias
        distance = position[:, None] - key[None, :]
        near = (distance >= 0) & (distance < EXTENT)
        scores += tl.load(row[:, None] + distance, near, other=0).to(tl.float32) * _LOG2_E
    return scores


def constants(scale: float, softcap: float) -> tuple[float, float]:
    """`scale` and `softcap` as `scored` takes them, which is CAPPED where `softcap` is not 0."""
    if not softcap:
        return scale * LOG2_E, 0.0
    return 2 * scale * LOG2_E / softcap, softcap * LOG2_E


@triton.jit
def fold(
    q,
    state,
    memory,
    table,
    plane,
    key,
    exists,
    visible,
    scale,
    softcap,
    bias,
    CAPPED: tl.constexpr,
    ALIBI: tl.constexpr,
    EXTENT: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BITS: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Folds the keys at positions `key` [N] into state = (acc [M, D], peak [M], total [M]).

    `memory` = (cache, its scales and zeros, which are read unless BITS is 0). `plane` = (key and
    value heads, head). `exists` [N] guards loads and `visible` [M, N] scores, both only if MASKED.
    `scale` and `softcap` as in `scored`: exponentials are powers of two. `bias` as in `biased`.
    """
    acc, peak, total = state
    cache, kv_params = memory
    heads, head = plane
    column = tl.arange(0, COLUMNS)
    inside = column < D
    if MASKED:
        block = tl.load(table + key // BLOCK_TOKENS, exists, other=0).to(tl.int64)
    else:
        block = tl.load(table + key // BLOCK_TOKENS).to(tl.int64)
        exists = key >= 0  # all of them
    row = (block * 2 * heads + head) * BLOCK_TOKENS + key % BLOCK_TOKENS
    keys = load_rows(
        cache, kv_params, row[None, :], column[:, None], exists[None, :], inside[:, None],
        MASKED, BITS, D,
    )  # fmt: skip
    products = tl.dot(q, keys.to(q.dtype), input_precision="ieee")
    scores = biased(scored(products, scale, softcap, CAPPED), bias, key, ALIBI, EXTENT)
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    value_row = row + heads * BLOCK_TOKENS
    values = load_rows(
        cache, kv_params, value_row[:, None], column[None, :], exists[:, None], inside[None, :],
        MASKED, BITS, D,
    )  # fmt: skip
    values = values.to(q.dtype)
    acc = tl.dot(weights.to(q.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return acc, new_peak, total * shrink + tl.sum(weights, 1)
