"""Triton kernel of head_norm: a program takes some heads of one token, of queries and of keys."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..device import divided_up, early_launch, power_of_two

ELEMENTS = 1024  # of a program; its four warps hold 8 in a thread


@triton.jit
def _normalise_heads(
    q, k, q_weight, k_weight, q_strides, k_strides, eps,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = column < D
    query = (head < QUERIES)[:, None]
    key = ((head >= QUERIES) & (head < QUERIES + KEYS))[:, None]
    queries = q + token * q_strides[0] + head[:, None] * q_strides[1] + column[None, :]
    keys = k + token * k_strides[0] + (head - QUERIES)[:, None] * k_strides[1] + column[None, :]
    x = tl.load(queries, query & inside[None, :], other=0).to(tl.float32)
    x += tl.load(keys, key & inside[None, :], other=0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
    of_queries = tl.load(q_weight + column, inside, other=0).to(tl.float32)
    of_keys = tl.load(k_weight + column, inside, other=0).to(tl.float32)
    weight = tl.where(query, of_queries[None, :], of_keys[None, :])
    normed = (x * scale[:, None] * weight).to(q.dtype.element_ty)
    tl.store(queries, normed, query & inside[None, :])
    tl.store(keys, normed, key & inside[None, :])


def head_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    """See the public function."""
    tokens, queries, size = q.shape
    keys, columns = k.shape[1], power_of_two(size)
    rows = max(1, ELEMENTS // columns)
    early = early_launch(q.device)
    if tokens:
        _normalise_heads[(tokens, divided_up(queries + keys, rows))](
            q,
            k,
            q_weight,
            k_weight,
            q.stride()[:2],
            k.stride()[:2],
            eps,
            QUERIES=queries,
            KEYS=keys,
            D=size,
            COLUMNS=columns,
            ROWS=rows,
            EARLY=early,
            launch_pdl=early,
            num_warps=4,
        )
