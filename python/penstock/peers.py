"""Sums over the ranks through peer memory, for tensors so small that NCCL's latency dominates."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch import Tensor

# Above this NCCL moves fewer bytes: here every rank reads the whole tensor of every other.
LIMIT = 2 << 20
ALIGNMENT = 16  # bytes that the kernel moves at once


class PeerSum:
    """One-shot all-reduce: each rank writes its part where the others can read it, waits for
    them, and sums all parts. One kernel, which a CUDA graph can hold. All ranks sum in the same
    order, so all have the same bits. No multicast.
    """

    def __init__(self, device: torch.device) -> None:
        """All ranks together. Raises RuntimeError where a GPU cannot read another's memory."""
        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("the ranks have not met")
        self._group = group.group_name
        self._shared = symmetric.empty(LIMIT, dtype=torch.uint8, device=device)
        symmetric.rendezvous(self._shared, self._group)

    @staticmethod
    def fits(x: Tensor) -> bool:
        """Whether `x` is small enough, and of a size that can be moved."""
        return 0 < x.nbytes <= LIMIT and x.nbytes % ALIGNMENT == 0 and x.is_contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """The sum of all ranks' `x`, as a new tensor."""
        part = self._shared[: x.nbytes].view(x.dtype).view(x.shape)
        total: Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(part, x, "sum", self._group)
        return total
