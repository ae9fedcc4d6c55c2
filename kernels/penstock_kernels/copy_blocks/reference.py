"""Reference of copy_blocks in torch."""

from __future__ import annotations

from torch import Tensor


def copy_blocks(kv_cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """See the public function."""
    kv_cache[destinations] = kv_cache[sources]
