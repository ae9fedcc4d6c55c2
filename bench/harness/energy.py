"""Power and energy of launches, as the driver counts them: `bench/kernels.py --energy`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from penstock_kernels.case import Case
from penstock_kernels.op import Op

from harness.graphs import captured

CUDA = torch.device("cuda")
WARM = 0.4  # seconds of warming up, of one that is measured
FAR = 256 << 20  # bytes of arguments that a graph goes through at least
MOST = 24  # sets of arguments
READ = 1 << 30  # bytes


class Counter:
    """The driver's count of what the current device has taken."""

    def __init__(self) -> None:
        """OSError where there is no driver, or it does not know."""
        self.driver = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        # By its name, for the driver's numbers may be others than torch's.
        name = f"GPU-{torch.cuda.get_device_properties().uuid}".encode()
        self._ask("Init_v2")
        self._ask("DeviceGetHandleByUUID", name, ctypes.byref(self.device))

    def _ask(self, function: str, *arguments: object) -> None:
        if failed := getattr(self.driver, f"nvml{function}")(*arguments):
            raise OSError(f"nvml{function} failed with {failed}")

    def joules(self) -> float:
        """Since the driver was loaded."""
        millijoules = ctypes.c_ulonglong()
        self._ask("DeviceGetTotalEnergyConsumption", self.device, ctypes.byref(millijoules))
        return millijoules.value / 1e3

    def megahertz(self) -> int:
        """The multiprocessors' clock."""
        clock = ctypes.c_uint()
        self._ask("DeviceGetClockInfo", self.device, 1, ctypes.byref(clock))
        return clock.value


@dataclass(frozen=True)
class Drawn:
    """Of one launch."""

    seconds: float
    joules: float
    megahertz: int  # of the multiprocessors, at the end

    def __str__(self) -> str:
        watts = self.joules / self.seconds
        rates = f"{watts:6.0f} W {1e3 * self.joules:9.2f} mJ {self.megahertz:5} MHz"
        return f"{1e6 * self.seconds:9.1f} us {rates}"


def drawn(counter: Counter, launches: Sequence[Callable[[], object]], seconds: float) -> Drawn:
    """Time and energy of one launch, measured over `seconds` of launches."""
    graph = captured(launches)
    rounds, began = 0, time.perf_counter()
    while time.perf_counter() - began < WARM * seconds:
        graph.replay()
        torch.cuda.synchronize()
    began, before = time.perf_counter(), counter.joules()
    while time.perf_counter() - began < seconds:
        for _ in range(4):
            graph.replay()
        rounds += 4
        torch.cuda.synchronize()
    count, took = rounds * len(launches), time.perf_counter() - began
    taken = counter.joules() - before
    graph.replay()  # an idle device has another clock
    return Drawn(took / count, taken / count, counter.megahertz())


@triton.jit
def _read(x, out, count, BLOCK: tl.constexpr):
    """Adds up what the programs read."""
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        total += tl.load(x + at + tl.arange(0, BLOCK)).to(tl.float32)
    tl.store(out + tl.program_id(0), tl.sum(total))


def read_bytes() -> list[Callable[[], object]]:
    """Launches that read READ random bytes each."""
    sources = [torch.randn(READ // 2, dtype=torch.bfloat16, device=CUDA) for _ in range(4)]
    programs = 8 * torch.cuda.get_device_properties(CUDA).multi_processor_count
    out = torch.empty(programs, device=CUDA)
    return [partial(_read[(programs,)], x, out, x.numel(), 4096, num_warps=4) for x in sources]


def launches_of(op: Op[..., object], case: Case) -> list[Callable[[], object]]:
    """Launches of a case with several sets of arguments."""
    count = max(1, min(MOST, -(-FAR // max(case.bytes_moved, 1)))) if case.bytes_moved else 2
    return [partial(op.triton, **case.make(CUDA)) for _ in range(count)]
