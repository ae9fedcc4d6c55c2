"""GPU memory that all ranks of a group can access."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from penstock_kernels.peer_sum import EMPTY, Peers, memory_bytes
from penstock_kernels.peer_sum.plan import CHANNELS, WORD


class PeerMemory:
    """The inboxes of the ranks, for `peer_sum`. Does not use multicast."""

    def __init__(self, device: torch.device) -> None:
        """Called by all ranks together. Raises RuntimeError if a GPU cannot access another's
        memory."""
        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("the process group is not initialised")
        rank, ranks = dist.get_rank(), dist.get_world_size()
        words = memory_bytes(ranks) // WORD
        self._shared = symmetric.empty(words, dtype=torch.int32, device=device)
        self._shared.fill_(EMPTY)
        torch.cuda.synchronize(device)
        # The rendezvous is a barrier: no rank writes to an inbox that is not filled with EMPTY yet.
        handle = symmetric.rendezvous(self._shared, group.group_name)
        reached = [handle.get_buffer(r, (words,), torch.int32) for r in range(ranks)]
        addresses = torch.tensor([buffer.data_ptr() for buffer in reached], device=device)
        turns = torch.zeros(CHANNELS, dtype=torch.int32, device=device)
        self.peers = Peers(rank, ranks, addresses, turns)
