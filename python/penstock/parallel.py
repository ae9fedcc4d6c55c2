"""A tensor-parallel group: the ranks that hold one model together.

Collectives run on tensors of the group's device: on GPUs through memory that the ranks share where
they can, else by NCCL; on CPUs by gloo. A group of one does nothing. Every rank calls the same
collectives in the same order, which holds because every rank folds the same step requests.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from penstock_kernels.op import cannot_build, reason
from penstock_kernels.peer_sum import joins, peer_join, peer_sum, probe, takes
from penstock_kernels.rms_norm import NormInput
from torch import Tensor

from penstock.faults import BadSetting

if TYPE_CHECKING:
    from penstock_kernels.peer_sum import Peers

    from penstock.peers import PeerMemory

log = logging.getLogger("penstock.worker")
TIMEOUT = timedelta(minutes=10)


def _builds(device: torch.device) -> bool:
    """Whether kernels that sum over peer memory can be built here; warns if not."""
    try:
        probe(device)
    except Exception as error:
        if not cannot_build(error):
            raise
        log.warning(
            "the kernel of peer_join cannot be built here, so each sum waits for NCCL: %s",
            reason(error),
        )
        return False
    return True


class Group:
    """This process's place in its tensor-parallel group."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self.peers: Peers | None = None
        self._memory: PeerMemory | None = None

    @classmethod
    def join(cls, rank: int, size: int, rendezvous: str, device: torch.device) -> Group:
        """Meets the other ranks at `rendezvous` (file:// or tcp://, unique to this group).

        Raises BadSetting if the place is unusable or the others do not come within the timeout.
        """
        if size == 1:
            return cls()
        if not rendezvous.startswith(("file://", "tcp://")):
            raise BadSetting(
                f"rendezvous must be file:// or tcp:// with {size} ranks, found {rendezvous!r}"
            )
        if dist.is_initialized():
            dist.destroy_process_group()
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            dist.init_process_group(
                backend, init_method=rendezvous, rank=rank, world_size=size, timeout=TIMEOUT
            )
        except (RuntimeError, ValueError) as error:
            raise BadSetting(f"rank {rank} of {size} cannot join {rendezvous}: {error}") from error
        group = cls(rank, size)
        if device.type == "cuda":
            group._meet_peers(device)
        return group

    def _meet_peers(self, device: torch.device) -> None:
        """Shares memory with the other ranks if every one of them can, and can build the kernels
        that do."""
        if not self.minimum(int(_builds(device)), device):
            return
        from penstock.peers import PeerMemory  # slow to import, and few need it

        memory = None
        try:
            memory = PeerMemory(device)
        except RuntimeError as error:
            log.warning("no peer memory between the GPUs, so each sum waits for NCCL: %s", error)
        if self.minimum(int(memory is not None), device) and memory is not None:
            self._memory, self.peers = memory, memory.peers

    def leave(self) -> None:
        """Ends this rank's membership; the group is unusable afterwards."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def share(self, total: int, what: str) -> int:
        """This rank's equal part of `total`. Raises BadSetting naming `what` if it is not whole."""
        if total % self.size:
            raise BadSetting(
                f"{what} is {total}, which {self.size} ranks cannot share equally; "
                f"set --tp to a divisor of {total}"
            )
        return total // self.size

    def normed(self, norm_input: NormInput) -> tuple[Tensor, Tensor]:
        """(y, total) of rms_norm, x being summed over the ranks first. x may be overwritten."""
        if self.size > 1 and norm_input.x.numel():
            if self.peers is not None and takes(norm_input.x, self.size):
                return peer_sum(norm_input, self.peers)
            dist.all_reduce(norm_input.x)
        return norm_input.normed()

    def join_columns(self, x: Tensor) -> Tensor:
        """[R, C] on each rank -> [R, size * C] on all, in order of rank."""
        if self.size == 1:
            return x
        if self.peers is not None and joins(x, self.size):
            return peer_join(x, self.peers)
        rows, columns = x.shape
        parts = x.new_empty((self.size * rows, columns))
        dist.all_gather_into_tensor(parts, x.contiguous())
        return parts.view(self.size, rows, columns).transpose(0, 1).reshape(rows, -1)

    def minimum(self, value: int, device: torch.device) -> int:
        """The smallest of the ranks' values."""
        if self.size == 1:
            return value
        x = torch.tensor([value], dtype=torch.int64, device=device)
        dist.all_reduce(x, op=dist.ReduceOp.MIN)
        return int(x.item())
