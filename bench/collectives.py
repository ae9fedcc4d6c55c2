"""Times the sum over GPUs with residual and rms_norm, in CUDA graphs, by several ways.

    python bench/run.py collectives [--ranks 2] [--columns 4096] [--variants]

One process per GPU. Tensors are [rows, columns] bfloat16, one row per token of a step;
microseconds of one sum among 64 in a row, with the norm that follows each in a model:

    NCCL    all_reduce, then the op rms_norm
    copies  torch's one-shot sum over peer memory (two barriers, the ranks read), then rms_norm
    peers   the kernel `peer_sum`, which does all of it, by its rule

and of the 65 of a step of 32 layers. The floor is one meeting of the ranks (an empty barrier over
peer memory) and the bytes that a rank sends, at the rate of a large copy; both are measured in the
same run. Every result is compared with float64, and among the ranks to the last bit. With
--variants, also every plan of a list, best first. Then the same of joining the ranks' logits.
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
from penstock.parallel import Group
from penstock_kernels.linear.tune import replays
from penstock_kernels.peer_sum import Peers, Plan, peer_join, peer_sum, rule
from penstock_kernels.rms_norm import NormInput
from torch import Tensor
from torch.multiprocessing.spawn import spawn

ROWS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 8192)
JOINED = (1, 32, 256)
VOCABULARY = 128_256
SUMS = 64
STEP_SUMS = 65  # of an 8B: two in each layer, one of the embedding
WARM, TIMED = 3, 20  # replays: the same number on all ranks, or they would wait for each other
COPY_BYTES = 256 << 20
COPIES_LIMIT = 2 << 20
EPS = 1e-5


@dataclass(frozen=True)
class Floor:
    """What a sum through peer memory takes at least."""

    meeting: float  # microseconds
    bytes_per_us: float  # read of one other rank

    def of(self, x: Tensor, ranks: int) -> float:
        """Sent to each other rank where all sum; twice, in shares, where each sums a share."""
        return self.meeting + min(ranks - 1, 2 * (ranks - 1) / ranks) * x.nbytes / self.bytes_per_us


def microseconds(launch: Callable[[], object], times: int) -> float:
    """Of one launch, as part of a graph of `times`; medians over the replays."""

    def chain() -> None:
        for _ in range(times):
            launch()

    return 1e3 * statistics.median(replays(chain, WARM + TIMED)[WARM:]) / times


class Copies:
    """torch's one-shot sum, which product and bench used before `peer_sum`."""

    def __init__(self, device: torch.device) -> None:
        group = dist.group.WORLD
        assert group is not None
        self.shared = symmetric.empty(COPY_BYTES, dtype=torch.uint8, device=device)
        self.handle = symmetric.rendezvous(self.shared, group)
        self.group = group.group_name

    def floor(self, rank: int, ranks: int) -> Floor:
        """Of a barrier and of a large copy from the next rank."""
        other = self.handle.get_buffer((rank + 1) % ranks, (COPY_BYTES,), torch.uint8)
        own = torch.empty_like(other)
        meeting = microseconds(lambda: self.handle.barrier(), SUMS)
        copy = microseconds(lambda: own.copy_(other), 4)
        dist.barrier()
        return Floor(meeting, COPY_BYTES / copy)

    def normed(self, norm_input: NormInput) -> tuple[Tensor, Tensor]:
        x = norm_input.x
        part = self.shared[: x.nbytes].view(x.dtype).view(x.shape)
        total = torch.ops.symm_mem.one_shot_all_reduce_copy(part, x, "sum", self.group)
        return norm_input._replace(x=total).normed()


def all_reduced(norm_input: NormInput) -> tuple[Tensor, Tensor]:
    """By NCCL; sums in place again and again, so of zeros where it is timed."""
    dist.all_reduce(norm_input.x)
    return norm_input.normed()


def checked(peers: Peers, norm_input: NormInput, plan: Plan | None) -> None:
    """Raises AssertionError unless the sum is right, and the same on all ranks."""
    exact = norm_input.x.double()
    dist.all_reduce(exact)
    assert norm_input.residual is not None
    exact += norm_input.residual.double()
    for found in peer_sum(norm_input, peers, plan):
        every = [torch.empty_like(found) for _ in range(peers.ranks)]
        dist.all_gather(every, found)
        if not all(torch.equal(found, other) for other in every):
            raise AssertionError(f"ranks disagree about a sum of {tuple(found.shape)}, {plan}")
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2**-8)


def variants(rows: int, row_bytes: int, ranks: int) -> list[Plan]:
    """Plans worth measuring, the rule's first."""
    chosen = rule(rows, row_bytes, ranks)
    warps = [w for w in (4, 8, 16) if w * 32 * 16 <= row_bytes]
    plans = [
        Plan(programs, w, halves)
        for programs in (64, 128, 256)
        for w in warps
        for halves in ((False, True) if ranks > 2 else (False,))
    ]
    return list(dict.fromkeys([chosen, *plans]))


@dataclass(frozen=True)
class Bench:
    """One rank's part."""

    rank: int
    ranks: int
    columns: int
    every_plan: bool

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def norm_input(self, rows: int, device: torch.device) -> NormInput:
        torch.manual_seed(rows)
        residual = torch.randn(rows, self.columns, device=device).bfloat16()
        scale = torch.randn(self.columns, device=device).bfloat16()
        torch.manual_seed(rows + self.rank + 1)
        return NormInput(torch.randn_like(residual), residual, scale, EPS)

    def measure(self, device: torch.device, peers: Peers) -> None:
        copies = Copies(device)
        floor = copies.floor(self.rank, self.ranks)
        rate = floor.bytes_per_us / 1e3
        name = torch.cuda.get_device_name()
        self.say(f"{self.ranks} x {name}, NCCL {torch.cuda.nccl.version()}")
        self.say(f"a meeting takes {floor.meeting:.1f} us, a copy reads {rate:.0f} GB/s of a peer")
        self.say("   rows    KiB     NCCL   copies    peers    floor   65 sums, ms: NCCL, peers")
        for rows in ROWS:
            self.row(self.norm_input(rows, device), copies, floor, peers)
        self.say("   rows    KiB     NCCL    peers    floor   logits of a share joined")
        for rows in JOINED:
            self.joined(rows, device, floor, peers)

    def joined(self, rows: int, device: torch.device, floor: Floor, peers: Peers) -> None:
        plain = Group(self.rank, self.ranks)  # has no peers, so NCCL joins and torch transposes
        x = torch.randn(rows, VOCABULARY // self.ranks, device=device).bfloat16()
        if not torch.equal(peer_join(x, peers), plain.join_columns(x)):
            raise AssertionError(f"joined wrongly: {tuple(x.shape)}")
        nccl = microseconds(lambda: plain.join_columns(x), SUMS)
        ours = microseconds(lambda: peer_join(x, peers), SUMS)
        least = floor.meeting + (self.ranks - 1) * x.nbytes / floor.bytes_per_us
        self.say(f"{rows:7} {x.nbytes >> 10:6} {nccl:8.1f} {ours:8.1f} {least:8.1f}")

    def row(self, norm_input: NormInput, copies: Copies, floor: Floor, peers: Peers) -> None:
        x = norm_input.x
        checked(peers, norm_input, None)
        ours = microseconds(lambda: peer_sum(norm_input, peers), SUMS)
        zeros = norm_input._replace(x=torch.zeros_like(x))
        nccl = microseconds(lambda: all_reduced(zeros), SUMS)
        old = "-"
        if x.nbytes <= COPIES_LIMIT:
            old = f"{microseconds(lambda: copies.normed(norm_input), SUMS):.1f}"
        least = floor.of(x, self.ranks)
        step = f"{STEP_SUMS * nccl / 1e3:.2f}, {STEP_SUMS * ours / 1e3:.2f}"
        shown = f"{nccl:8.1f} {old:>8} {ours:8.1f} {least:8.1f}"
        self.say(f"{len(x):7} {x.nbytes >> 10:6} {shown}   {step}")
        if self.every_plan:
            self.plans(norm_input, peers)

    def plans(self, norm_input: NormInput, peers: Peers) -> None:
        rows, row_bytes = len(norm_input.x), self.columns * norm_input.x.itemsize
        found = []
        for plan in variants(rows, row_bytes, self.ranks):
            checked(peers, norm_input, plan)
            found.append((microseconds(lambda p=plan: peer_sum(norm_input, peers, p), SUMS), plan))  # type: ignore[misc]
        for time, plan in sorted(found, key=lambda pair: pair[0])[:4]:
            self.say(f"        {time:8.1f} {plan}")


def run(rank: int, ranks: int, columns: int, every_plan: bool, meeting: str) -> None:
    """One rank's process."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = Group.join(rank, ranks, meeting, device)
    if group.peers is None:
        raise SystemExit("these GPUs cannot reach each other's memory")
    Bench(rank, ranks, columns, every_plan).measure(device, group.peers)
    group.leave()


def main() -> None:
    parser = argparse.ArgumentParser(description="Times sums over GPUs.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--columns", type=int, default=4096, help="2048 is a 1B")
    parser.add_argument("--variants", action="store_true", help="every plan, not only the rule's")
    options = parser.parse_args()
    if torch.cuda.device_count() < options.ranks:
        raise SystemExit(
            f"{options.ranks} ranks need as many GPUs; {torch.cuda.device_count()} here"
        )
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        arguments = (options.ranks, options.columns, options.variants, meeting)
        spawn(run, arguments, nprocs=options.ranks)


if __name__ == "__main__":
    main()
