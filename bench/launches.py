"""What a launch of a kernel costs the host, and where: steps without a graph pay it for each one.

    PYTHONPATH=python:kernels python bench/launches.py

Per op, microseconds of one call: in all; the op's own part, in which Triton launches nothing
(checks, outputs, sizes); and the launch of the compiled kernel alone, its arguments known, which
is Triton's C code and the driver. What is left is Triton's: it binds the arguments and finds the
kernel for their types, sizes and alignments anew each time. Beside them, cuBLAS through PyTorch.
Calls are queued in bursts that are shorter than the device's queue.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from penstock_kernels import act_mul, rms_norm, rope_kv_write
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

BURST, BURSTS = 200, 15
TOKENS, HIDDEN, HEADS, KV_HEADS, SIZE = 8, 4096, 32, 8, 128
Call = Callable[[], object]


def microseconds(call: Call) -> float:
    """Of one call on the host; the least over the bursts."""
    call()
    found = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(BURST):
            call()
        found.append((time.perf_counter() - began) / BURST)
    return 1e6 * min(found)


@contextmanager
def launching(launch: Callable[..., Any]) -> Iterator[None]:
    """`launch` instead of Triton's."""
    run = JITFunction.run
    JITFunction.run = launch
    try:
        yield
    finally:
        JITFunction.run = run


def own_part(call: Call) -> float:
    with launching(lambda *_, **__: None):
        return microseconds(call)


def compiled_alone(call: Call) -> float:
    """The last kernel that `call` launches, launched as Triton does once it has found it."""
    seen: list[Call] = []
    run = CompiledKernel.run.fget

    def noted(kernel: CompiledKernel) -> Callable[..., None]:
        launch = run(kernel)

        def note(*args: Any) -> None:
            seen[:] = [lambda: launch(*args)]
            launch(*args)

        return note

    CompiledKernel.run = property(noted)
    try:
        call()
    finally:
        CompiledKernel.run = property(run)
    return microseconds(seen[0])


def calls() -> dict[str, Call]:
    """Ops of a decoder layer, on a few tokens: the device is never what they wait for."""
    kind: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    x, residual = torch.randn(2, TOKENS, HIDDEN, **kind)
    scale = torch.ones(HIDDEN, **kind)
    qkv = torch.randn(TOKENS, HEADS + 2 * KV_HEADS, SIZE, **kind)
    q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    cache = torch.zeros(4, 2, KV_HEADS, 16, SIZE, **kind)
    places = torch.arange(TOKENS, dtype=torch.int32, device="cuda")
    angles = torch.zeros(64, SIZE, device="cuda")
    return {
        "rms_norm": lambda: rms_norm(x, scale, 1e-5, residual),
        "act_mul": lambda: act_mul(x),
        "rope_kv_write": lambda: rope_kv_write(q, k, v, angles, places, places, cache),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"{torch.cuda.get_device_name()}; microseconds of the host for one call")
    print(f"{'op':16}{'in all':>10}{'own part':>10}{'compiled':>10}{'Triton':>10}")
    for name, call in calls().items():
        whole, own, alone = microseconds(call), own_part(call), compiled_alone(call)
        rest = whole - own - alone
        print(f"{name:16}{whole:10.1f}{own:10.1f}{alone:10.1f}{rest:10.1f}")
    x = torch.randn(TOKENS, 256, dtype=torch.bfloat16, device="cuda")
    weight = torch.randn(256, 256, dtype=torch.bfloat16, device="cuda")
    print(f"{'torch linear':16}{microseconds(lambda: F.linear(x, weight)):10.1f}")


if __name__ == "__main__":
    main()
