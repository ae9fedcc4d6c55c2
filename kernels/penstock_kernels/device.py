"""Properties of a device that launches need."""

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
