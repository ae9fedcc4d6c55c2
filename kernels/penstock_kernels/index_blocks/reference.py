"""Reference of index_blocks in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..shared import SCORES, wide


def index_blocks(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    kv_len: Tensor,
    chosen: Tensor,
    *,
    block: int,
    recent: int,
) -> None:
    """See the public function."""
    chosen.fill_(-1)
    heads, size, block_tokens = q.shape[1], q.shape[2], kv_cache.shape[3]
    for slot in slots[kv_len > 0].unique().tolist():  # queries of a slot are of one sequence
        own = ((slots == slot) & (kv_len > 0)).nonzero()[:, 0]
        seen = torch.arange(int(kv_len[own].max()), device=q.device)
        blocks = block_tables[slot, seen // block_tokens].long()
        keys = wide(kv_cache[blocks, 0, 0, seen % block_tokens, -size:])
        for rows in own.split(max(1, SCORES // (heads * len(seen)))):
            hidden = seen >= kv_len[rows, None, None]
            scores = torch.einsum("nhd,ld->nhl", wide(q[rows]), keys)
            scores = scores.masked_fill_(hidden, -torch.inf)
            best = _of_blocks(scores, kv_len[rows, None, None], block, recent)
            chosen[rows, :, : best.shape[2]] = _choose(best, chosen.shape[2])


def _of_blocks(scores: Tensor, kv_len: Tensor, block: int, recent: int) -> Tensor:
    """Scores [n, H, blocks] of blocks, of those of tokens [n, H, L]; kv_len [n, 1, 1]."""
    padded = F.pad(scores, (0, -scores.shape[2] % block), value=-torch.inf)
    best: Tensor = padded.unflatten(2, (-1, block)).amax(3)
    number, own = torch.arange(best.shape[2], device=scores.device), (kv_len - 1) // block
    return best.masked_fill_((number <= own) & (number > own - recent), torch.inf)


def _choose(scores: Tensor, most: int) -> Tensor:
    """The largest scores of blocks [n, H, B]: their numbers, rising, then -1, [n, H, up to
    `most`]."""
    best = scores.sort(dim=2, descending=True, stable=True)
    none, count = best.values[..., :most] == -torch.inf, scores.shape[2]
    numbers = best.indices[..., :most].masked_fill(none, count).sort(dim=2).values
    return numbers.masked_fill(numbers == count, -1).int()
