"""A tensor-parallel group: the ranks that share one model.

Collectives run on the group's device: on GPUs over peer memory where possible, else NCCL; on CPUs
over gloo. A group of one does nothing. Every rank calls the same collectives in the same order,
because every rank runs the same step requests.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
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
    """Returns whether the kernels for peer memory can be built here; warns if not."""
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


@dataclass(frozen=True)
class Share:
    """One of `count` equal parts of a dimension; by default all of it."""

    index: int = 0
    count: int = 1


class Group:
    """This process's rank in its tensor-parallel group."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self.peers: Peers | None = None
        self._memory: PeerMemory | None = None

    @classmethod
    def join(cls, rank: int, size: int, rendezvous: str, device: torch.device) -> Group:
        """Joins the other ranks at `rendezvous` (file:// or tcp://, unique to this group).

        Raises BadSetting if the rendezvous is unusable or the other ranks do not join within the
        timeout.
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
        """Sets up peer memory if every rank supports it and can build its kernels."""
        if not self.minimum(int(_builds(device)), device):
            return
        from penstock.peers import PeerMemory  # slow to import

        memory = None
        try:
            memory = PeerMemory(device)
        except RuntimeError as error:
            log.warning("no peer memory between the GPUs, so each sum waits for NCCL: %s", error)
        if self.minimum(int(memory is not None), device) and memory is not None:
            self._memory, self.peers = memory, memory.peers

    def leave(self) -> None:
        """Leaves the group; it is unusable afterwards."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def share(self, total: int, what: str) -> int:
        """Returns `total / size`. Raises BadSetting naming `what` if it is not an integer."""
        if total % self.size:
            raise BadSetting(
                f"{what} is {total}, which {self.size} ranks cannot share equally; "
                f"set --tp to a divisor of {total}"
            )
        return total // self.size

    @property
    def own(self) -> Share:
        """This rank's part of what the ranks share equally."""
        return Share(self.rank, self.size)

    def kv_share(self, heads: int, what: str = "num_key_value_heads") -> Share:
        """Returns this rank's part of `heads` KV heads. With more ranks than heads, each head is on
        several ranks: those that have its query heads.

        Raises BadSetting naming `what` if neither number is a multiple of the other.
        """
        if heads % self.size == 0:
            return self.own
        if self.size % heads:
            raise BadSetting(
                f"{what} is {heads}, which {self.size} ranks cannot share equally; "
                f"set --tp to a divisor or a multiple of {heads}"
            )
        return Share(self.rank * heads // self.size, heads)

    def summed(self, x: Tensor) -> Tensor:
        """Returns the sum of x over the ranks. May overwrite x."""
        if self.size > 1 and x.numel():
            dist.all_reduce(x)
        return x

    def normed(self, norm_input: NormInput) -> tuple[Tensor, Tensor]:
        """Sums x over the ranks, then applies rms_norm. Returns (y, total). May overwrite x."""
        if self.size > 1 and norm_input.x.numel():
            same = norm_input.scale.dtype == norm_input.x.dtype  # as the kernel reads them
            if self.peers is not None and same and takes(norm_input.x, self.size):
                return peer_sum(norm_input, self.peers)
            dist.all_reduce(norm_input.x)
        return norm_input.normed()

    def join_columns(self, x: Tensor) -> Tensor:
        """Gathers [R, C] of each rank to [R, size * C] on all, in rank order."""
        if self.size == 1:
            return x
        if self.peers is not None and joins(x, self.size):
            return peer_join(x, self.peers)
        rows, columns = x.shape
        parts = x.new_empty((self.size * rows, columns))
        dist.all_gather_into_tensor(parts, x.contiguous())
        return parts.view(self.size, rows, columns).transpose(0, 1).reshape(rows, -1)

    def minimum(self, value: int, device: torch.device) -> int:
        """Returns the minimum over the ranks."""
        if self.size == 1:
            return value
        x = torch.tensor([value], dtype=torch.int64, device=device)
        dist.all_reduce(x, op=dist.ReduceOp.MIN)
        return int(x.item())
