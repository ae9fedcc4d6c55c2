"""Ranks of a tensor-parallel group as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from checkpoints import prompt
from penstock.cache import kv_format
from penstock.config import read_config
from penstock.layers import Build
from penstock.layers.attention import Chunks, KvPlaces, StepContext
from penstock.models import family
from penstock.models.decoder import Decoder
from penstock.parallel import Group
from penstock.quant import Methods, with_stored_experts
from penstock.weights import Checkpoint, load_weights
from penstock.worker.startup.loader import kv_geometry
from penstock_kernels.rms_norm import NormInput
from torch import Tensor

T = TypeVar("T")
LENGTH = 70  # of the prompt of `prefilled`


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
        """What `work` returns on each rank. Raises the error of the first rank that fails."""
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                results[rank] = work(Rank(rank, self))
            except BaseException as error:
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]  # those of the others follow from it
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


def assert_ranks_agree(
    path: Path, methods: Methods, ranks: int, expert_parallel: bool = False
) -> None:
    """Each rank has the logits of one that is alone."""
    cls: Any = family(read_config(path))

    @torch.inference_mode()
    def work(group: Group) -> Tensor:
        return prefilled(path, cls, group, methods, expert_parallel=expert_parallel)

    alone = work(Group())
    for found in Threads(ranks).run(work):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-9)


def prefilled(
    path: Path,
    cls: type[Decoder],
    group: Group,
    methods: Methods,
    given: Tensor | None = None,
    expert_parallel: bool = False,
) -> Tensor:
    """The last logits [1, vocab] float64 of a prompt, on a rank of a group; of the rows `given`,
    if any, in place of its tokens' embeddings."""
    spec = cls.read_config(read_config(path))
    with Checkpoint(path) as checkpoint:
        shapes = {name: checkpoint[name].shape for name in checkpoint}
        methods = with_stored_experts(methods, cls.expert_scales, shapes)
        build = Build(torch.float64, torch.device("cpu"), group, methods, 128, expert_parallel)
        model = cls(cls.as_stored(spec, shapes), build)
        checkpoint.renew(cls.older)
        load_weights(checkpoint, model, model.ignored, lambda *_: None)
    return last_logits(model, spec, build, given)


def last_logits(model: Any, spec: Any, build: Build, given: Tensor | None = None) -> Tensor:
    """The last logits [1, vocab] of the prompt of `prefilled`, of a loaded model."""

    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    geometry = kv_geometry(spec, build, 16, kv_format("auto", build.dtype))
    caches = geometry.allocate([5] * len(geometry.groups), build.device).caches
    positions = ints(*range(LENGTH))
    chunks = Chunks(ints(0), ints(0, LENGTH), ints(LENGTH), LENGTH)
    places = [KvPlaces(ints(*range(5))[None], positions)] * len(caches)
    context = StepContext(positions, places, caches, None, chunks)
    ids = torch.tensor(prompt(LENGTH)) if given is None else torch.zeros(LENGTH, dtype=torch.int64)
    logits: Tensor = model.logits(model.forward(ids, context, ints(LENGTH - 1), given))
    return logits
