"""What the references share: the precision they work in, and the gather of a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(tensor: Tensor) -> Tensor:
    """`tensor` in float32, or unchanged if it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def gather(
    kv_cache: Tensor, tables: tuple[Tensor, Tensor], positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys and values, each [S, Hkv, L, D] wide, of `positions` [S, L] int64 of S sequences.

    `tables` are (block_tables [N, B], slots [S]): the sequences' rows among the tables.

    Whole rows are gathered token by token and never a token that is not asked for: the unwritten
    end of a block may hold anything, NaN included, which no mask on the scores would keep out.
    """
    _, _, heads, block_tokens, size = kv_cache.shape
    block_tables, slots = tables
    blocks = block_tables[slots[:, None], positions // block_tokens].long()  # [S, L]
    first = blocks * (2 * heads * block_tokens) + positions % block_tokens
    planes = torch.arange(2 * heads, device=kv_cache.device) * block_tokens
    rows = first[:, None, :] + planes[:, None]  # [S, 2 Hkv, L]
    kv = kv_cache.view(-1, size).index_select(0, rows.flatten())
    keys, values = wide(kv).view(len(positions), 2, heads, -1, size).unbind(1)
    return keys, values
