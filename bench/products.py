"""Times cuBLAS on a layer's matrix products at many numbers of tokens, and for seconds on end.

    python bench/products.py [--ranks 2]

The shapes of an 8B Llama, bfloat16, random data. Steps with prompts are padded to sizes that do
well here (`penstock.worker.batch.shape`). A device that computes for seconds meets its power
limit: what it then reaches bounds the rows of the serving table that last for seconds. How much
power a product takes depends on the numbers: the last line has every other activation 0. With
--ranks, the products of one GPU of a group that shares each layer.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.testing import do_bench

LAYERS = 32
QKV, OUT, GATE_UP, DOWN = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)  # rows, columns
TOKENS = (
    64, 128, 192, 224, 256, 288, 320, 384, 448, 512, 544, 640, 768, 896, 1024, 1056, 1152, 1280,
    1536, 1792, 2048, 2112, 2304, 2560, 3072, 4096, 6144, 8192,
)  # fmt: skip
SECONDS = 2.0


def shapes(ranks: int) -> list[tuple[int, int]]:
    """Of one rank's weights: rows of what comes first, columns of what follows it."""
    rows = [(rows // ranks, columns) for rows, columns in (QKV, GATE_UP)]
    columns = [(rows, columns // ranks) for rows, columns in (OUT, DOWN)]
    return [rows[0], columns[0], rows[1], columns[1]]


def operations(weights: list[Tensor]) -> int:
    """Of one token."""
    return 2 * sum(weight.numel() for weight in weights)


def inputs(tokens: int, weights: list[Tensor]) -> list[Tensor]:
    """What each of the weights is multiplied with."""
    return [torch.randn(tokens, w.shape[1], dtype=w.dtype, device=w.device) for w in weights]


def burst(tokens: int, weights: list[Tensor]) -> list[float]:
    """Milliseconds of each product, each timed alone for a moment."""
    pairs = zip(inputs(tokens, weights), weights, strict=True)
    return [do_bench(partial(F.linear, x, w), 5, 25, return_mode="median") for x, w in pairs]


@contextmanager
def watching() -> Iterator[list[tuple[float, float]]]:
    """What `nvidia-smi` reads meanwhile, ten times a second: watts and megahertz."""
    command = ["nvidia-smi", f"--id={torch.cuda.current_device()}", "-lms", "100"]
    command += ["--query-gpu=power.draw,clocks.sm", "--format=csv,noheader,nounits"]
    found: list[tuple[float, float]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield found
        finally:
            process.terminate()
            lines = process.communicate()[0].splitlines()
            pairs = (line.split(",") for line in lines if line.count(",") == 1)
            found += [(float(watts), float(clock)) for watts, clock in pairs]


def sustained(xs: list[Tensor], weights: list[Tensor]) -> float:
    """Milliseconds of a layer, over SECONDS of nothing else."""
    rounds = 0
    torch.cuda.synchronize()
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        for _ in range(20):
            for x, w in zip(xs, weights, strict=True):
                F.linear(x, w)
        rounds += 20
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / rounds


def report(tokens: int, weights: list[Tensor], zeros: bool = False) -> None:
    """Prints what a layer sustains, and at which power and clock."""
    xs = inputs(tokens, weights)
    for x in xs if zeros else ():
        x[:, ::2] = 0
    with watching() as seen:
        layer = sustained(xs, weights)
    work = tokens * operations(weights)
    later = seen[len(seen) // 2 :] or [(0.0, 0.0)]
    watts, clock = (statistics.median(values) for values in zip(*later, strict=True))
    print(
        f"{tokens:6} tokens for {SECONDS:.0f} s{', half zeros' if zeros else ''}: "
        f"{work / layer / 1e9:4.0f} TFLOP/s, {watts:.0f} W, {clock:.0f} MHz"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that share each layer")
    sizes = shapes(parser.parse_args().ranks)
    # As in a worker: sums in float32 throughout.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    weights = [torch.randn(size, dtype=torch.bfloat16, device="cuda") * 0.02 for size in sizes]
    work = operations(weights)
    print(f"{torch.cuda.get_device_name()}, cuBLAS")
    for tokens in TOKENS:
        times = burst(tokens, weights)
        layer = sum(times)
        each = " ".join(f"{1e3 * t:6.0f}" for t in times)
        print(
            f"{tokens:6} tokens {each} us; {LAYERS * layer:7.2f} ms for {LAYERS} layers, "
            f"{1e3 * LAYERS * layer / tokens:6.2f} us a token, "
            f"{tokens * work / layer / 1e9:4.0f} TFLOP/s"
        )
    for tokens in (1024, 2048, 8192):
        report(tokens, weights)
    report(2048, weights, zeros=True)


if __name__ == "__main__":
    main()
