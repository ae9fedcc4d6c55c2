"""Ranks that sum over memory that they share, a process for each, in Triton's interpreter.

    TRITON_INTERPRET=1 python peer_ranks.py FOLDER RANKS SEED

Fails on a wrong result, where ranks differ, and if they leave something in their inboxes. What a
kernel writes reaches memory late and in any order, word by word, as GPUs may have it: to another
rank's memory at any time, to its own at the end of the kernel at the latest.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from penstock_kernels.peer_sum import EMPTY, Peers, Plan, memory_bytes, peer_join, peer_sum, probe
from penstock_kernels.peer_sum.plan import CHANNELS, WORD
from penstock_kernels.rms_norm import NormInput
from penstock_kernels.rms_norm.reference import rms_norm
from torch import Tensor
from triton.runtime import interpreter

SUMS = 4
# Triton's interpreter cuts bfloat16 off instead of rounding it.
ERROR = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
EPS = 1e-5


class Sum(NamedTuple):
    """One sum of all ranks."""

    parts: list[Tensor]
    residual: Tensor | None
    scale: Tensor
    plan: Plan | None


def sums(seed: int, ranks: int) -> Iterator[Sum]:
    """The same on every rank: shapes, plans and values change from one to the next."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(SUMS):
        dtype = choose.choice([torch.bfloat16, torch.float16, torch.float32])
        rows, columns = choose.choice([1, 2, 5, 11]), choose.choice([6, 32, 70])
        plans = [Plan(programs, 1, two_shot=False) for programs in (1, 3)]
        plans += [Plan(programs, 1, two_shot=True) for programs in (2, 4)]
        parts = list(torch.randn(ranks, rows, columns).to(dtype))
        # What an empty inbox holds, zeros of both signs, infinities.
        for part, number in zip(parts, itertools.count()):
            part.view(torch.int32)[number % rows, 1] = -1
            part[(number + 1) % rows, 4:6] = torch.tensor([-0.0, 0.0])
        residual = torch.randn(rows, columns).to(dtype) if choose.random() < 0.7 else None
        scale = torch.randn(columns).to(dtype)
        yield Sum(parts, residual, scale, choose.choice([None, *plans]))


def check(case: Sum, normed: Tensor, total: Tensor) -> None:
    """Against torch in float64; the normalised rows against those of the sum as rounded."""
    exact = torch.stack(case.parts).double().sum(0)
    if case.residual is not None:
        exact += case.residual.double()
    tolerance = ERROR[total.dtype]
    close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    torch.testing.assert_close(total.double(), exact, **close)
    expected = rms_norm(total.double(), case.scale.double(), EPS)
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(normed.double(), expected, **close)


class Memory:
    """Delays what kernels write, and delivers it word by word, in any order."""

    def __init__(self, inboxes: list[Tensor], rank: int, seed: int) -> None:
        self.random = random.Random(seed + rank)
        self.own = self._span(inboxes[rank])
        self.others = [self._span(x) for i, x in enumerate(inboxes) if i != rank]
        self.late: list[tuple[int, int]] = []  # (address, word) of others' memory
        self.unfinished: list[tuple[int, int]] = []  # of this rank's inboxes
        self.spans = [(self._span(x), x.data_ptr(), x.numpy()) for x in inboxes]
        builder = interpreter.interpreter_builder
        self.store, self.load = builder.create_masked_store, builder.create_masked_load
        builder.create_masked_store = self.write
        builder.create_masked_load = self.read

    @staticmethod
    def _span(x: Tensor) -> range:
        return range(x.data_ptr(), x.data_ptr() + x.nbytes)

    def write(self, at: Any, value: Any, mask: Any, *options: Any) -> Any:
        addresses = at.data.ravel().tolist()
        if addresses[0] in self.own:
            queue = self.unfinished
        elif any(addresses[0] in span for span in self.others):
            queue = self.late
        else:
            return self.store(at, value, mask, *options)
        found = zip(addresses, value.data.ravel().tolist(), mask.data.ravel().tolist(), strict=True)
        queue.extend((address, word) for address, word, kept in found if kept)
        return None

    def read(self, *arguments: Any) -> Any:
        time.sleep(0)  # others may use the core
        self.deliver(self.late, self.random.choice([0, 1, 7, 500]))
        self.deliver(self.unfinished, self.random.choice([0, 1, 7]))
        return self.load(*arguments)

    def deliver(self, queue: list[tuple[int, int]], most: int) -> None:
        """Some words of a queue, in any order."""
        for _ in range(min(most, len(queue))):
            place = self.random.randrange(len(queue))
            queue[place], queue[-1] = queue[-1], queue[place]
            address, word = queue.pop()
            start, words = next(found[1:] for found in self.spans if address in found[0])
            words[(address - start) // WORD] = word

    def finish(self) -> None:
        """The kernel has ended."""
        self.deliver(self.unfinished, len(self.unfinished))


def inboxes_of(folder: Path, ranks: int) -> list[Tensor]:
    """Every rank's, in files that all processes map."""
    size = memory_bytes(ranks) // WORD
    paths = [str(folder / f"{rank}") for rank in range(ranks)]
    return [torch.from_file(path, shared=True, size=size, dtype=torch.int32) for path in paths]


def run(inboxes: list[Tensor], rank: int, seed: int, digests: Tensor) -> None:
    """One rank's life."""
    ranks = len(inboxes)
    memory = Memory(inboxes, rank, seed)
    addresses = torch.tensor([inbox.data_ptr() for inbox in inboxes])
    peers = Peers(rank, ranks, addresses, torch.zeros(CHANNELS, dtype=torch.int32))
    digest = hashlib.sha256()
    for case in sums(seed, ranks):
        time.sleep(memory.random.choice([0, 0, 0.02]))
        norm_input = NormInput(case.parts[rank], case.residual, case.scale, EPS)
        normed, total = peer_sum(norm_input, peers, case.plan)
        memory.finish()
        check(case, normed, total)
        wide = [part[:1].repeat(1, 64) for part in case.parts]  # up to two pieces
        joined = peer_join(wide[rank], peers)
        memory.finish()
        every = torch.cat(wide, dim=1)
        torch.testing.assert_close(joined, every, rtol=0, atol=0, equal_nan=True)
        for tensor in (normed, total, joined):
            digest.update(np.ascontiguousarray(tensor.view(torch.int16)))
    while memory.late:
        memory.deliver(memory.late, 100)
    digests[rank] = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def main(folder: Path, ranks: int, seed: int) -> None:
    inboxes = inboxes_of(folder, ranks)
    for inbox in inboxes:
        inbox.fill_(EMPTY)
    digests = torch.zeros(ranks, 32, dtype=torch.uint8).share_memory_()
    context = multiprocessing.get_context("fork")  # they share what took seconds to import
    started = [
        context.Process(target=run, args=(inboxes, rank, seed, digests), daemon=True)
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
        if process.exitcode:
            raise SystemExit("a rank failed")  # and the others end with this process
    assert all(torch.equal(digest, digests[0]) for digest in digests), "ranks differ"
    assert all(bool((inbox == EMPTY).all()) for inbox in inboxes), "something was left"


if __name__ == "__main__":
    probe(torch.device("cpu"))
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
