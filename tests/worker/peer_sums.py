"""Sums over the memory of several GPUs: `python peer_sums.py RANKS` fails on a wrong one."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from penstock.parallel import Group
from penstock_kernels.peer_sum import Peers, Plan, peer_join, peer_sum
from penstock_kernels.rms_norm import NormInput, rms_norm
from torch import Tensor

SHAPES = [
    (1, 4096), (3, 6), (1, 2048), (5, 70), (33, 4096), (128, 5120), (129, 4096), (8, 8192),
    (257, 4096), (1000, 2048), (2500, 4096), (1, 8192),
]  # fmt: skip
KINDS = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-6}
PLANS = [None, Plan(100, 16, two_shot=False), Plan(128, 8, two_shot=True)]
REPLAYS = 200
EPS = 1e-5


class Case:
    """One sum whose inputs change in place."""

    def __init__(self, shape: tuple[int, int], kind: torch.dtype, device: torch.device) -> None:
        self.x, self.residual = torch.empty(2, *shape, dtype=kind, device=device)
        self.scale = torch.ones(shape[1], dtype=kind, device=device)
        self.exact = torch.empty(shape, dtype=torch.float64, device=device)
        self.generator = torch.Generator(device).manual_seed(sum(shape))

    def draw(self, rank: int, ranks: int) -> None:
        """New values; all except x are the same on all ranks."""
        self.residual.normal_(generator=self.generator)
        self.exact.copy_(self.residual)
        for other in range(ranks):
            part = torch.empty_like(self.x).normal_(generator=self.generator)
            self.exact += part.double()
            if other == rank:
                self.x.copy_(part)

    def summed(self, peers: Peers, plan: Plan | None = None) -> tuple[Tensor, Tensor]:
        return peer_sum(NormInput(self.x, self.residual, self.scale, EPS), peers, plan)

    def check(self, normed: Tensor, total: Tensor) -> None:
        close = {"rtol": KINDS[total.dtype], "atol": KINDS[total.dtype]}
        torch.testing.assert_close(total.double(), self.exact, **close)
        expected = rms_norm(total, self.scale, EPS)
        torch.testing.assert_close(normed, expected, rtol=2 * close["rtol"], atol=close["atol"])
        for found in (normed, total):
            every = [torch.empty_like(found) for _ in range(dist.get_world_size())]
            dist.all_gather(every, found)
            assert all(torch.equal(found, other) for other in every), "ranks differ"


def one_by_one(peers: Peers, device: torch.device) -> None:
    for kind in KINDS:
        for shape in SHAPES:
            case = Case(shape, kind, device)
            for plan in PLANS:
                case.draw(peers.rank, peers.ranks)
                case.check(*case.summed(peers, plan))


def joined(peers: Peers, device: torch.device) -> None:
    """As the logits of a vocabulary's shares are."""
    for rows, columns in ((1, 64_128), (32, 64_128), (257, 64_128), (5, 70), (3, 4098)):
        x = torch.randn(rows, columns, device=device).bfloat16()
        every = [torch.empty_like(x) for _ in range(peers.ranks)]
        dist.all_gather(every, x)
        assert torch.equal(peer_join(x, peers), torch.cat(every, dim=1))


def in_a_graph(peers: Peers, device: torch.device) -> None:
    """Many sums in a row, without anything between them that could hide a race."""
    cases = [Case(shape, torch.bfloat16, device) for shape in SHAPES * 2]

    def launch() -> list[tuple[Tensor, Tensor]]:
        return [case.summed(peers, PLANS[i % 3]) for i, case in enumerate(cases)]

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = launch()
    for replay in range(REPLAYS):
        if replay % 10 == 0:
            for case in cases:
                case.draw(peers.rank, peers.ranks)
        graph.replay()
        if replay % 10 == 0:
            for case, (normed, total) in zip(cases, found, strict=True):
                case.check(normed, total)


def rank_main(rank: int, ranks: int, meeting: str) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = Group.join(rank, ranks, meeting, device)
    assert group.peers is not None, "these GPUs cannot reach each other's memory"
    checks: list[Callable[[Peers, torch.device], None]] = [one_by_one, joined, in_a_graph]
    for check in checks:
        check(group.peers, device)
    group.leave()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        arguments = (int(sys.argv[1]), f"file://{Path(folder) / 'meeting'}")
        torch.multiprocessing.spawn(rank_main, arguments, nprocs=int(sys.argv[1]))
