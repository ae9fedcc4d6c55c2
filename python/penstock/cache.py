"""The paged KV cache: its geometry and its memory. The router decides who owns which block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KvGeometry:
    """Shape of one rank's KV memory; all but `block_tokens` follow from model and ranks."""

    layers: int
    kv_heads: int  # of this rank
    head_dim: int
    block_tokens: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        per_layer = 2 * self.kv_heads * self.block_tokens * self.head_dim
        return self.layers * per_layer * self.dtype.itemsize

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a sequence of `tokens` tokens fills."""
        return -(-tokens // self.block_tokens)

    def allocate(self, blocks: int, device: torch.device) -> list[Tensor]:
        """One tensor [blocks, 2, kv_heads, block_tokens, head_dim] per layer, zeroed.

        Zeroed, because a padded row may read a block that no one wrote, and NaN would spread.
        """
        shape = (blocks, 2, self.kv_heads, self.block_tokens, self.head_dim)
        return [torch.zeros(shape, dtype=self.dtype, device=device) for _ in range(self.layers)]
