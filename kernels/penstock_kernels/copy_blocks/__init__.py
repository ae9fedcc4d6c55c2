"""Whole-block copies within a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import expect, expect_cache
from ..op import Op
from . import reference

_OP = Op("copy_blocks", reference.copy_blocks, mutates=("kv_cache",))


def copy_blocks(kv_cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """kv_cache[destinations[i]] = kv_cache[sources[i]] for each i, in place.

    Destinations must be distinct and must not be sources, because the copies run in any order.

    Args: kv_cache [blocks, 2, Hkv, block_tokens, D] contiguous, any dtype; sources and
        destinations [N] int32 or int64, on the cache's device.
    Bytes moved: two blocks for each copy.
    """
    expect_cache(kv_cache)
    expect("sources", sources, (sources.numel(),), (torch.int32, torch.int64))
    expect("destinations", destinations, (sources.numel(),), (sources.dtype,))
    _OP.on(kv_cache)(kv_cache, sources, destinations)
