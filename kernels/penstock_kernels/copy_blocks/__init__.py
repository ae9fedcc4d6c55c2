"""Whole-block copies within a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import expect, expect_contiguous, expect_rank
from ..kv_quantization import FP8
from ..op import Op
from . import reference

_OP = Op("copy_blocks", reference.copy_blocks, mutates=("kv_cache",))


def copy_blocks(kv_cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """kv_cache[destinations[i]] = kv_cache[sources[i]] for each i, in place.

    Destinations must be distinct and must not be sources, because the copies run in any order.

    Args: kv_cache [blocks, planes, Hkv, block_tokens, D] contiguous, any dtype; sources and
        destinations [N] int32 or int64, on the cache's device. Scales and zeros of a quantized
        cache, [blocks, 2, Hkv, block_tokens, 2], are copied by a call of their own.
    Bytes moved: two blocks for each copy.
    """
    expect_rank("kv_cache", kv_cache, "blocks, planes, Hkv, block_tokens, D")
    expect_contiguous("kv_cache", kv_cache)
    expect("sources", sources, (sources.numel(),), (torch.int32, torch.int64))
    expect("destinations", destinations, (sources.numel(),), (sources.dtype,))
    if kv_cache.dtype in FP8:
        kv_cache = kv_cache.view(torch.uint8)  # a copy needs no GPU that computes with fp8
    _OP.on(kv_cache)(kv_cache, sources, destinations)
