"""Creates the CUDA context of a rank's GPU while torch is imported."""

from __future__ import annotations

import contextlib
import ctypes
import threading

DRIVER = "libcuda.so.1"


def begin_cuda_context(rank: int) -> None:
    """Starts a thread that creates the context in which torch will run.

    A failure is not reported here, because torch will get the same error and explain it.
    """
    threading.Thread(target=_retain_context, args=(rank,), name="driver", daemon=True).start()


def _retain_context(rank: int) -> None:
    """Retains the device's primary context, which the CUDA runtime uses, until the process ends."""
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL(DRIVER)  # calls release the interpreter's lock
        count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        driver.cuInit(0)
        driver.cuDeviceGetCount(ctypes.byref(count))
        # As the loader counts: with one visible GPU it is that one, whatever the rank.
        if driver.cuDeviceGet(ctypes.byref(device), rank if count.value > 1 else 0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
