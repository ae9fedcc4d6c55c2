"""What the references share: precision, the gather of a paged cache, and attention itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .kv_quantization import Rows

# Scores of `attention` that are held at once where torch has no kernel for them.
SCORES = 1 << 24


@dataclass(frozen=True)
class Rule:
    """How an attention layer turns products of queries and keys into weights."""

    scale: float
    window: int = 0
    """Keys that a query sees, its own included; 0: all."""
    aligned: bool = False
    """Whether windows begin at multiples of their size, so that a query sees less than a whole
    one unless it is the last of its window."""
    softcap: float = 0.0
    """Scores become softcap tanh(score / softcap); 0: they stay."""
    sinks: Tensor | None = None
    """[Hq] a logit of each query head that takes part in the softmax, without a value; or [rows,
    Hq], of each query."""
    slopes: Tensor | None = None
    """[Hq] what each query head adds to a score for a key one position later (ALiBi)."""
    rel_bias: Tensor | None = None
    """[rows, Hq, E] what each query adds to the scores of the last E keys, its own first."""

    def first(self, position: int) -> int:
        """Returns the first key that a query at `position` sees."""
        if not self.window:
            return 0
        if self.aligned:
            return position // self.window * self.window
        return max(position + 1 - self.window, 0)


def wide(tensor: Tensor) -> Tensor:
    """`tensor` in float32, or unchanged if it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def gather(
    cache: Rows, tables: tuple[Tensor, Tensor], positions: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys and values, each [S, Hkv, L, D] of `dtype`, of `positions` [S, L] int64 of S sequences.

    `tables` are (block_tables [N, B], slots [S]): the sequences' rows among the tables.

    Whole rows are gathered token by token and never a token that is not asked for: the unwritten
    end of a block may hold anything, NaN included, which no mask on the scores would keep out.
    """
    _, _, heads, block_tokens, _ = cache.kv_cache.shape
    block_tables, slots = tables
    blocks = block_tables[slots[:, None], positions // block_tokens].long()  # [S, L]
    first = blocks * (2 * heads * block_tokens) + positions % block_tokens
    planes = torch.arange(2 * heads, device=positions.device) * block_tokens
    rows = first[:, None, :] + planes[:, None]  # [S, 2 Hkv, L]
    kv = cache.read(rows.flatten(), dtype)
    keys, values = kv.view(len(positions), 2, heads, -1, cache.size).unbind(1)
    return keys, values


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    rule: Rule,
    causal: bool = False,
    distance: Tensor | None = None,
) -> Tensor:
    """softmax(scores) V: q [..., n, D], keys [..., L, D], values [..., L, C], of equal ranks.

    `mask` [..., n, L], true where a query sees a key, and `rule.sinks` [..., n] are broadcast. The
    mask knows the window. `causal` stands for the mask of n = L queries that see what precedes.
    `rule.slopes` [..., n], broadcast too, are factors of `distance` [n, L] or [1, L]: the position
    of each key, less the query's. `rule.rel_bias` is [..., n, E].
    """
    plain = rule.sinks is None and rule.slopes is None and rule.rel_bias is None
    if not rule.softcap and plain:
        return scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=causal, scale=rule.scale
        )
    *outer, queries, _ = q.shape
    span = keys.shape[-2]
    if causal:
        mask = torch.ones(queries, span, dtype=torch.bool, device=q.device).tril_()
    seen = None if mask is None else mask.expand(*outer, queries, span)
    sinks = None if rule.sinks is None else rule.sinks.to(q.dtype).expand(*outer, queries)
    slopes = None if rule.slopes is None else rule.slopes.to(q.dtype).expand(*outer, queries)
    rows = max(1, SCORES // max(math.prod(outer) * span, 1))
    out = q.new_empty((*outer, queries, values.shape[-1]))
    for start in range(0, queries, rows):
        some = slice(start, start + rows)
        scores = q[..., some, :] @ keys.transpose(-1, -2) * rule.scale
        if rule.softcap:
            scores = scores.div_(rule.softcap).tanh_().mul_(rule.softcap)
        if distance is not None:
            own = distance[some] if len(distance) > 1 else distance
            if slopes is not None:
                scores.add_(slopes[..., some, None] * own)
            if rule.rel_bias is not None:
                scores.add_(_of_distances(rule.rel_bias[..., some, :], -own))
        if seen is not None:
            scores.masked_fill_(~seen[..., some, :], -torch.inf)
        total = scores.logsumexp(-1)
        if sinks is not None:
            total = torch.logaddexp(total, sinks[..., some])
        out[..., some, :] = scores.sub_(total[..., None]).exp_() @ values
    return out


def _of_distances(rel_bias: Tensor, distance: Tensor) -> Tensor:
    """The biases of keys so far before their queries: rel_bias [..., n, E], distance [n, L] or
    [1, L] -> [..., n, L]; 0 from E on."""
    extent = rel_bias.shape[-1]
    places = distance.clamp(0, extent - 1).expand(*rel_bias.shape[:-1], -1)
    return rel_bias.gather(-1, places).masked_fill_((distance < 0) | (distance >= extent), 0)
