"""Slow beginnings of a GPU's worker that need not wait for each other.

Failures are left to those who need what was begun here: they meet them again, and have the words.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable

from penstock.worker.compilers import Compilers

DRIVER = "libcuda.so.1"
CORES = 4  # of a rank: what fewer can do, the load itself needs


def begin_cuda_context(rank: int) -> None:
    """Makes the context on the rank's GPU, in which torch will run, while torch is imported."""
    _start_thread("driver", lambda: _retain_context(rank))


def begin_compilers(ranks: int) -> Compilers | None:
    """Processes that compile kernels, where cores are left for each rank's: one that forks the
    others imports Triton and the kernels while this one does."""
    if len(os.sched_getaffinity(0)) < CORES * ranks:
        return None
    with contextlib.suppress(OSError):
        return Compilers()
    return None


def import_kernels() -> None:
    """Imports Triton and the modules of all kernels, while weights are read."""
    from penstock_kernels.op import OPS

    def touch() -> None:
        for op in list(OPS.values()):
            with contextlib.suppress(Exception):
                _ = op.triton

    _start_thread("kernels", touch)


def _start_thread(name: str, work: Callable[[], None]) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


def _retain_context(rank: int) -> None:
    """The device's primary context, which the CUDA runtime shares; kept as long as the process."""
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL(DRIVER)  # calls release the interpreter's lock
        count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        driver.cuInit(0)
        driver.cuDeviceGetCount(ctypes.byref(count))
        # As the loader counts: with one visible GPU it is that one, whatever the rank.
        if driver.cuDeviceGet(ctypes.byref(device), rank if count.value > 1 else 0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
