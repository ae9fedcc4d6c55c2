"""Compiles portable kernels for GPUs, on a machine without one.

    python compile_portable.py CAPABILITY PROCESSORS SHARED_BYTES, say 80 108 166912 of an A100

Fails where one does not fit the GPU, or keeps what it adds up in memory instead of registers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from absent import Absent
from penstock_kernels.act_mul import ACTIVATIONS
from penstock_kernels.act_mul.triton import act_mul
from penstock_kernels.case import PLAIN, PLAIN_KV, QUANTIZED_KV, Heads, Scoring, paged, stored
from penstock_kernels.linear import launch
from penstock_kernels.linear.plan import BUCKETS
from penstock_kernels.paged_decode_attention import splits
from penstock_kernels.paged_decode_attention import triton as decode
from penstock_kernels.paged_decode_attention.cases import decode_arguments
from penstock_kernels.paged_prefill_attention import triton as prefill
from penstock_kernels.rope_kv_write import triton as rope
from triton.runtime import driver
from triton.runtime.jit import JITFunction

CPU = torch.device("cpu")
DUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
CAPABILITY, PROCESSORS, SHARED_BYTES = map(int, sys.argv[1:])
run = JITFunction.run


def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    """In place of a launch."""
    kernel = run(self, *args, grid=grid, warmup=True, **options)
    name = f"{self.__name__} {options}"
    assert kernel.metadata.shared <= SHARED_BYTES, f"{name}: {kernel.metadata.shared}"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(DUMP), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True)
    stack = re.findall(r" STACK:(\d+) ", usage.stdout + usage.stderr)
    # A few registers, on some GPUs, of tiles of many rows and where a cache has fewer bits.
    narrow = options.get("BITS") or options.get("LARGEST")
    spill = 128 if narrow or self.fn is prefill._attend_tile.fn else 0
    assert stack and all(int(bytes_) <= spill for bytes_ in stack), f"{name}: {usage.stdout}"
    sys.stdout.write(f"{self.__name__}: compiled\n")
    return kernel


BF16, F32 = torch.bfloat16, torch.float32
KINDS = [kv for kv in QUANTIZED_KV if kv != "e4m3" or CAPABILITY >= 89]  # what can convert it
# Llama 3.1 8B, a rank of it, Gemma 2 9B, Gemma 3 1B, gpt-oss 20B; and their kernels for float32.
LAYERS = [
    (Heads(32, 8, 128, 16), 0, PLAIN, BF16),
    (Heads(8, 1, 128, 16), 0, PLAIN, BF16),
    (Heads(16, 8, 256, 16), 4096, Scoring(50.0), BF16),
    (Heads(4, 1, 256, 16), 0, PLAIN, BF16),
    (Heads(4, 1, 256, 16), 512, Scoring(50.0), F32),
    (Heads(64, 8, 64, 16), 128, Scoring(sinks=True), BF16),
]


def attention(
    heads: Heads, window: int, rule: Scoring, kind: torch.dtype, kv: str = PLAIN_KV
) -> None:
    """Decode, and prefill of many rows."""
    rest = {"scale": 0.1, "window": window, **rule.arguments(heads, CPU)}
    case = decode_arguments(heads, [40, 5000], kind, CPU, kv=kv)
    decode.paged_decode_attention(**case, **rest)
    q = torch.empty((1100, heads.query, heads.size), dtype=kind)
    start = torch.tensor([0, len(q)], dtype=torch.int32)
    pages = stored(paged([len(q)], heads, kind, CPU), kv)
    prefill.paged_prefill_attention(q, **pages, query_start=start, max_query=len(q), **rest)


def write(heads: Heads, kv: str) -> None:
    """Rotation and the write of a prompt's keys and values."""
    case = decode_arguments(heads, [40, 5000], BF16, CPU, kv=kv)
    names = "q", "k", "v", "cos_sin", "positions", "slot_mapping", "kv_cache"
    rope.rope_kv_write(*(case[name] for name in names), kv_params=case.get("kv_params"))


def main() -> None:
    driver.set_active(Absent(CAPABILITY))
    JITFunction.run = compile_only
    for module in (splits, launch):
        module.processors = lambda _device: PROCESSORS
    prefill.is_hopper = lambda _device: CAPABILITY == 90  # of its tiles
    launch.shared_bytes = lambda _device: SHARED_BYTES
    for layer in LAYERS:
        attention(*layer)
    for kv in KINDS:
        for layer in (LAYERS[0], LAYERS[2]):
            attention(*layer, kv)
        write(LAYERS[0][0], kv)
    for activation in ACTIVATIONS:
        act_mul(torch.empty((3, 2 * 14336), dtype=torch.bfloat16), activation)
    weight = torch.empty((2 * 14336, 4096), dtype=torch.bfloat16)
    for rows in (rows for rows in BUCKETS if rows <= 64):
        launch.multiply(torch.empty((rows, 4096), dtype=torch.bfloat16), weight, None, gated=True)


if __name__ == "__main__":
    main()
