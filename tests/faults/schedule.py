"""Which fault comes when: all of it follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """A fault; the value is its name on the command line and in the report."""

    KILL = "kill"  # SIGKILL of a worker
    SEGV = "segv"  # SIGSEGV
    STOP = "stop"  # SIGSTOP, later SIGCONT
    RAISE = "raise"  # an exception in an op
    OOM = "oom"  # torch.OutOfMemoryError in an op
    STALL = "stall"  # an op takes 5 s
    CLOSE = "close"  # the worker's connections are shut down
    GARBAGE = "garbage"  # random bytes in the worker's connections
    STRANGER = "stranger"  # random bytes from a third party on the worker's socket
    DISK = "disk"  # the log cannot be written while a worker is killed
    CLOCK = "clock"  # the wall clock jumps
    TWICE = "twice"  # SIGKILL of a worker and soon of its replacement
    POISON = "poison"  # a request whose steps raise an exception
    KILLER = "killer"  # a request whose steps kill the worker
    LAUNCHER = "launcher"  # SIGKILL of the server's process


# Those that end the worker's process or its connections: each is a loss.
LOSSES = frozenset(
    {Kind.KILL, Kind.SEGV, Kind.RAISE, Kind.OOM, Kind.CLOSE, Kind.GARBAGE, Kind.DISK, Kind.TWICE}
)
# Ops that steps of the included model call in float64; two of them only in prefills.
OPS = (
    "rms_norm", "act_mul", "paged_decode_attention", "sample", "rope_kv_write",
    "paged_prefill_attention",
)  # fmt: skip
WEIGHTS = {Kind.KILL: 4, Kind.SEGV: 2}  # others: 1


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: Kind
    rank: int  # of the worker
    events: int  # of streams, which arrive between the recovery from the last fault and this one
    op: str  # for RAISE, OOM and STALL
    seed: int  # of what else is random: garbage, jumps of the clock, moments


def faults(seed: int, kinds: list[Kind], world_size: int) -> Iterator[Fault]:
    """Endless: rounds of all kinds, each round in an order of its own."""
    choose = random.Random(seed)
    once = [kind for kind in kinds for _ in range(WEIGHTS.get(kind, 1))]
    while True:
        for kind in choose.sample(once, len(once)):
            yield Fault(
                kind=kind,
                rank=choose.randrange(world_size),
                events=choose.randrange(10, 240),
                op=choose.choice(OPS),
                seed=choose.randrange(1 << 31),
            )
