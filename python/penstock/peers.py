"""Memory of each rank's GPU that all ranks of a group reach."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from penstock_kernels.peer_sum import EMPTY, Peers, memory_bytes
from penstock_kernels.peer_sum.plan import CHANNELS, WORD


class PeerMemory:
    """The inboxes of the ranks, for `peer_sum`. No multicast."""

    def __init__(self, device: torch.device) -> None:
        """All ranks together. Raises RuntimeError where a GPU cannot reach another's memory."""
        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("the ranks have not met")
        rank, ranks = dist.get_rank(), dist.get_world_size()
        words = memory_bytes(ranks) // WORD
        self._shared = symmetric.empty(words, dtype=torch.int32, device=device)
        self._shared.fill_(EMPTY)
        torch.cuda.synchronize(device)
        # Nobody returns before all have come, so nobody writes into what is yet to be emptied.
        handle = symmetric.rendezvous(self._shared, group.group_name)
        reached = [handle.get_buffer(r, (words,), torch.int32) for r in range(ranks)]
        addresses = torch.tensor([buffer.data_ptr() for buffer in reached], device=device)
        turns = torch.zeros(CHANNELS, dtype=torch.int32, device=device)
        self.peers = Peers(rank, ranks, addresses, turns)
