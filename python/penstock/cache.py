"""The paged KV cache: its geometry and its memory. The router owns the block tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KvGeometry:
    """Shape of one rank's KV memory; all fields but `block_tokens` follow from the model and
    ranks."""

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
        """Blocks needed for a sequence of `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def allocate(self, blocks: int, device: torch.device) -> list[Tensor]:
        """Allocates one tensor [blocks, 2, kv_heads, block_tokens, head_dim] per layer, zeroed.

        Zeroed, because a padding row may read an unwritten block, and NaN would spread.
        """
        shape = (blocks, 2, self.kv_heads, self.block_tokens, self.head_dim)
        return [torch.zeros(shape, dtype=self.dtype, device=device) for _ in range(self.layers)]
