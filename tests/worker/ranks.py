"""Ranks of a tensor-parallel group as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from penstock.parallel import Group
from penstock_kernels.rms_norm import NormInput
from torch import Tensor

T = TypeVar("T")


class Threads:
    """Where the ranks of a group meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def gather(self, rank: int, part: Tensor) -> list[Tensor]:
        """All ranks' parts, in order."""
        self.parts[rank] = part.clone()
        self.barrier.wait(30)
        found = list(self.parts)
        self.barrier.wait(30)
        return found

    def run(self, work: Callable[[Group], T]) -> list[T]:
        """What `work` returns on each rank."""
        results: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                results[rank] = work(Rank(rank, self))
            except BaseException:
                self.barrier.abort()
                raise

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class Rank(Group):
    """A rank whose collectives go through memory of the process."""

    def __init__(self, rank: int, threads: Threads) -> None:
        super().__init__(rank, threads.size)
        self.threads = threads

    def normed(self, norm_input: NormInput) -> tuple[Tensor, Tensor]:
        parts = self.threads.gather(self.rank, norm_input.x)
        return norm_input._replace(x=torch.stack(parts).sum(0)).normed()

    def summed(self, x: Tensor) -> Tensor:
        return torch.stack(self.threads.gather(self.rank, x)).sum(0)

    def join_columns(self, x: Tensor) -> Tensor:
        return torch.cat(self.threads.gather(self.rank, x), dim=1)
