"""Triton kernel of copy_blocks: one program per copy and tile of a block."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from ..device import divided_up, power_of_two

TILE = 4096


@triton.jit
def _copy_tile(cache, sources, destinations, elements, BLOCK: tl.constexpr):
    copy = tl.program_id(0)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < elements
    source = tl.load(sources + copy).to(tl.int64) * elements
    destination = tl.load(destinations + copy).to(tl.int64) * elements
    tl.store(cache + destination + element, tl.load(cache + source + element, inside), inside)


def copy_blocks(kv_cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """See the public function."""
    elements = kv_cache[0].numel()
    block = min(TILE, power_of_two(elements))
    if len(sources):
        grid = (len(sources), divided_up(elements, block))
        _copy_tile[grid](kv_cache, sources, destinations, elements, BLOCK=block, num_warps=4)
