"""Times the sum over GPUs: NCCL beside one-shot reads of peer memory, in CUDA graphs.

    PYTHONPATH=python:kernels python bench/collectives.py [--ranks 2] [--columns 4096]

One process per GPU. Tensors are [rows, columns] bfloat16, as a decode step of so many sequences
sums them; microseconds of one sum among 64 in a row, and of the 65 of a step of 32 layers. The
floor is one meeting of the ranks (an empty barrier over peer memory) and the bytes that a rank
reads of the others, at the rate of a large copy; both are measured in the same run. Every result
is compared with NCCL's, and among the ranks to the last bit.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import torch.multiprocessing
from penstock.parallel import Group
from penstock.peers import PeerSum
from torch import Tensor

ROWS = (1, 8, 32, 64, 128, 256, 512)
SUMS = 64
STEP_SUMS = 65  # of an 8B: two in each layer, one of the embedding
WARM, TIMED = 3, 20  # replays: the same number on all ranks, or they would wait for each other
COPY_BYTES = 256 << 20


@dataclass(frozen=True)
class Floor:
    """What a sum through peer memory takes at least."""

    meeting: float  # microseconds
    bytes_per_us: float  # read of one other rank

    def of(self, x: Tensor, ranks: int) -> float:
        return self.meeting + (ranks - 1) * x.nbytes / self.bytes_per_us


def microseconds(launch: Callable[[], object], times: int) -> float:
    """Of one launch, as part of a graph of `times`; medians over the replays."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(times):
            launch()
    found = []
    for _ in range(WARM + TIMED):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return 1e3 * statistics.median(found[WARM:]) / times


def measure_floor(rank: int, ranks: int, device: torch.device) -> Floor:
    """Of a barrier and of a large copy from the next rank."""
    shared = symmetric.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    handle = symmetric.rendezvous(shared, dist.group.WORLD)
    other = handle.get_buffer((rank + 1) % ranks, (COPY_BYTES,), torch.uint8)
    own = torch.empty_like(other, device=device)
    meeting = microseconds(lambda: handle.barrier(), SUMS)
    copy = microseconds(lambda: own.copy_(other), 4)
    dist.barrier()
    return Floor(meeting, COPY_BYTES / copy)


def checked(peers: PeerSum, x: Tensor) -> None:
    """Raises AssertionError unless the sum is NCCL's, and the same on all ranks."""
    exact, found = x.float(), peers(x)
    dist.all_reduce(exact)
    torch.testing.assert_close(found.float(), exact, rtol=2e-2, atol=2e-2)
    every = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(every, found)
    if not all(torch.equal(found, other) for other in every):
        raise AssertionError(f"ranks disagree about a sum of {tuple(x.shape)}")


def measure(rank: int, ranks: int, columns: int, meeting: str) -> None:
    """One rank's part."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = Group.join(rank, ranks, meeting, device)
    peers = group._peers
    floor = measure_floor(rank, ranks, device) if peers is not None else None
    if rank == 0:
        print(f"{ranks} x {torch.cuda.get_device_name()}, NCCL {torch.cuda.nccl.version()}")
        if floor is not None:
            rate = floor.bytes_per_us / 1e3
            print(f"a meeting takes {floor.meeting:.1f} us, a copy reads {rate:.0f} GB/s of a peer")
    for rows in ROWS:
        x = torch.randn(rows, columns, device=device).bfloat16()
        zeros = torch.zeros_like(x)  # summed in place again and again
        nccl = microseconds(lambda x=zeros: dist.all_reduce(x), SUMS)  # type: ignore[misc]
        shown = "peer memory: not for this size"
        if peers is not None and floor is not None and peers.fits(x):
            checked(peers, x)
            ours = microseconds(lambda x=x: peers(x), SUMS)  # type: ignore[misc]
            shown = f"peers {ours:6.1f}, floor {floor.of(x, ranks):6.1f}"
            shown += f"; a step's: {STEP_SUMS * nccl / 1e3:.2f} ms, {STEP_SUMS * ours / 1e3:.2f} ms"
        if rank == 0:
            print(f"{rows:5} rows, {x.nbytes >> 10:5} KiB, us: NCCL {nccl:6.1f}, {shown}")
    group.leave()


def main() -> None:
    parser = argparse.ArgumentParser(description="Times sums over GPUs.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--columns", type=int, default=4096, help="2048 is a 1B")
    options = parser.parse_args()
    if torch.cuda.device_count() < options.ranks:
        raise SystemExit(
            f"{options.ranks} ranks need as many GPUs; {torch.cuda.device_count()} here"
        )
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options.ranks, options.columns, f"file://{Path(folder) / 'meeting'}")
        torch.multiprocessing.spawn(measure, arguments, nprocs=options.ranks)


if __name__ == "__main__":
    main()
