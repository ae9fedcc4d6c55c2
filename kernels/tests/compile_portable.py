"""Compiles portable kernels for other GPUs than Hopper's, on a machine without one.

    python compile_portable.py CAPABILITY PROCESSORS SHARED_BYTES, say 80 108 166912 of an A100

Fails where one does not fit the GPU, or keeps what it adds up in memory instead of registers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from absent import Absent
from penstock_kernels.case import Heads
from penstock_kernels.linear import launch
from penstock_kernels.linear.plan import BUCKETS
from penstock_kernels.paged_decode_attention import splits
from penstock_kernels.paged_decode_attention import triton as decode
from penstock_kernels.paged_decode_attention.cases import decode_arguments
from triton.runtime import driver
from triton.runtime.jit import JITFunction

CPU = torch.device("cpu")
DUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
CAPABILITY, PROCESSORS, SHARED_BYTES = map(int, sys.argv[1:])
run = JITFunction.run


def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    """In place of a launch."""
    kernel = run(self, *args, grid=grid, warmup=True, **options)
    assert kernel.metadata.shared <= SHARED_BYTES, f"{self.__name__}: {kernel.metadata.shared}"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(DUMP), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True)
    assert " STACK:0 " in usage.stdout + usage.stderr, f"{self.__name__}: {usage.stdout}"
    sys.stdout.write(f"{self.__name__}: compiled\n")
    return kernel


def main() -> None:
    driver.set_active(Absent(CAPABILITY))
    JITFunction.run = compile_only
    for module in (splits, launch):
        module.processors = lambda _device: PROCESSORS
    launch.shared_bytes = lambda _device: SHARED_BYTES
    for query, kv in ((32, 8), (8, 1)):
        case = decode_arguments(Heads(query, kv, 128, 16), [40, 5000], torch.bfloat16, CPU)
        decode.paged_decode_attention(**case, scale=0.1)
    weight = torch.empty((2 * 14336, 4096), dtype=torch.bfloat16)
    for rows in (rows for rows in BUCKETS if rows <= 64):
        launch.multiply(torch.empty((rows, 4096), dtype=torch.bfloat16), weight, None, gated=True)


if __name__ == "__main__":
    main()
