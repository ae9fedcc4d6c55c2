"""The paged KV cache: its geometry and its memory. The router owns the block tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class KvShape(NamedTuple):
    """The KV shape of one layer. Layers of equal shape form a KV group."""

    window: int  # in tokens; 0 = unlimited
    kv_heads: int  # of this rank
    head_dim: int


@dataclass(frozen=True)
class KvGroup:
    """Layers that share a pool of blocks, and one block table per sequence."""

    shape: KvShape
    layers: tuple[int, ...]


@dataclass(frozen=True)
class KvMemory:
    """One rank's KV memory."""

    caches: list[Tensor]
    """For each layer [blocks, 2, kv_heads, block_tokens, head_dim]."""
    group_of: tuple[int, ...]
    """For each layer, its KV group."""

    @property
    def groups(self) -> int:
        """Number of KV groups."""
        return max(self.group_of) + 1

    def caches_of(self, group: int) -> list[Tensor]:
        """Returns the caches of a group's layers."""
        pairs = zip(self.caches, self.group_of, strict=True)
        return [cache for cache, of in pairs if of == group]


@dataclass(frozen=True)
class KvGeometry:
    """Shape of one rank's KV memory; the groups follow from the model and the number of ranks."""

    groups: tuple[KvGroup, ...]
    block_tokens: int
    dtype: torch.dtype

    @classmethod
    def of(cls, layers: Sequence[KvShape], block_tokens: int, dtype: torch.dtype) -> KvGeometry:
        """Returns the geometry of a model with these layers; groups without a window come first."""
        shapes = sorted(set(layers))
        groups = [
            KvGroup(shape, tuple(i for i, layer in enumerate(layers) if layer == shape))
            for shape in shapes
        ]
        return cls(tuple(groups), block_tokens, dtype)

    def block_bytes(self, group: KvGroup) -> int:
        """Returns the bytes of one block in all layers of a group."""
        per_layer = 2 * group.shape.kv_heads * self.block_tokens * group.shape.head_dim
        return len(group.layers) * per_layer * self.dtype.itemsize

    def blocks_for(self, tokens: int) -> int:
        """Returns the number of blocks for `tokens` consecutive tokens from position 0 on."""
        return -(-tokens // self.block_tokens)

    def allocate(self, blocks: Sequence[int], device: torch.device) -> KvMemory:
        """Allocates memory for the given number of blocks of each group.

        It is zeroed, because a padding row may read an unwritten block, and NaN would spread.
        """
        placed = []
        for number, (group, count) in enumerate(zip(self.groups, blocks, strict=True)):
            shape = (count, 2, group.shape.kv_heads, self.block_tokens, group.shape.head_dim)
            for layer in group.layers:
                cache = torch.zeros(shape, dtype=self.dtype, device=device)
                placed.append((layer, number, cache))
        placed.sort(key=lambda layer: layer[0])
        return KvMemory([cache for *_, cache in placed], tuple(group for _, group, _ in placed))

    def allocate_scratch(self, device: torch.device) -> KvMemory:
        """Allocates one block per group, which all layers of the group share."""
        memory = self.allocate([1] * len(self.groups), device)
        firsts = [memory.caches[group.layers[0]] for group in self.groups]
        return KvMemory([firsts[group] for group in memory.group_of], memory.group_of)
