"""Properties of a device that launches need, early launches, arithmetic of sizes."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=16)
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; few elsewhere, so that tests see many splits."""
    if device.type != "cuda":
        return 3
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache(maxsize=16)
def shared_bytes(device: torch.device) -> int:
    """Shared memory that a program may have: 99 KiB on most GPUs, 163 or 227 on large ones."""
    if device.type != "cuda":
        return 1 << 30
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 99 << 10))


@lru_cache(maxsize=16)
def is_hopper(device: torch.device) -> bool:
    """Compute capability 9.0, whose instructions the kernels for Hopper name."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@lru_cache(maxsize=32)
def arrivals(device: torch.device, count: int) -> Tensor:
    """Returns counters [count] int32 of arrived partial sums; all callers share one tensor.

    They are zero between launches: each kernel resets its counters, and launches share one stream.
    """
    return torch.zeros(count, dtype=torch.int32, device=device)


# Programmatic dependent launch: a kernel starts while the one before it on the stream still runs.
#
# A kernel launched with `launch_pdl=True` must call `gdc_wait()` before it touches anything that an
# earlier kernel wrote, or writes anything that one may still read: until then it may only read
# constants. `gdc_launch_dependents()` lets the next such kernel start. On an H200, in a CUDA graph
# of one-row products with 2048 x 2048 weights, each takes 3.5 us instead of 4.3.
#
# Not every kernel should let the next one start before it ends: while some multiprocessors are
# full, the next one's programs crowd onto the others, and stay there.


def early_launch(device: torch.device) -> bool:
    """Whether kernels of this device may be launched so: NVIDIA's, from Hopper on."""
    return device.type == "cuda" and _launches_early(device.index)


@lru_cache
def _launches_early(index: int | None) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(index) >= (9, 0)


def early_options(device: torch.device) -> dict[str, bool]:
    """Arguments for the launch of a kernel that waits for the one before it if EARLY."""
    early = early_launch(device)
    return {"EARLY": early, "launch_pdl": early}


# Arithmetic of sizes. Triton's own functions for it take microseconds on the host.


def divided_up(amount: int, size: int) -> int:
    """Pieces of `size` that hold `amount`."""
    return -(-amount // size)


def power_of_two(least: int) -> int:
    """The smallest power of two that is not less; 1 for 0."""
    return 1 << max(least - 1, 0).bit_length()
