"""A driver for Triton that compiles for a GPU which is not there."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget

NOWHERE = 1000  # a device that no later test has


class Absent:
    """As much of a driver as a compilation asks for."""

    def __init__(self, capability: int = 90) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return NOWHERE

    def get_current_stream(self, _device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)
