"""Times the sum over GPUs: NCCL beside one-shot reads of peer memory, in CUDA graphs.

    PYTHONPATH=python:kernels python bench/collectives.py [--ranks 2]

One process per GPU. Tensors are [rows, 4096] bfloat16; microseconds of one sum among 64 in a row.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.multiprocessing
from penstock.parallel import Group
from penstock.peers import LIMIT, PeerSum
from torch import Tensor
from triton.testing import do_bench

ROWS = (1, 8, 32, 64, 128, 256, 512)
SUMS = 64


def microseconds(sums: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Of one sum, as part of a graph of SUMS."""
    sums(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(SUMS):
            sums(x)
    return 1e3 * float(do_bench(graph.replay, return_mode="median")) / SUMS


def measure(rank: int, ranks: int, meeting: str) -> None:
    """One rank's part."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = Group.join(rank, ranks, meeting, device)
    peers = group._peers
    for rows in ROWS:
        x = torch.randn(rows, 4096, device=device).bfloat16()
        group._peers = None
        nccl = microseconds(group.sum, x.clone())
        group._peers = peers
        shown = "-"
        if peers is not None and PeerSum.fits(x):
            expected = group.sum(x.float()) if x.nbytes * 2 <= LIMIT else None
            if expected is not None:
                torch.testing.assert_close(group.sum(x).float(), expected, rtol=2e-2, atol=2e-2)
            shown = f"{microseconds(group.sum, x):.1f}"
        if rank == 0:
            print(
                f"{rows:5} rows, {x.nbytes >> 10:6} KiB: NCCL {nccl:7.1f} us, peers {shown:>7} us"
            )
    group.leave()


def main() -> None:
    parser = argparse.ArgumentParser(description="Times sums over GPUs.")
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, f"file://{Path(folder) / 'meeting'}")
        torch.multiprocessing.spawn(measure, arguments, nprocs=ranks)


if __name__ == "__main__":
    main()
