"""Times the gated product of many rows, in seconds of a whole layer's products, by every tiling.

    PYTHONPATH=kernels python bench/gated.py [--rows 256 1024 8192]

The shapes of an 8B Llama, bfloat16, random data. A GPU that multiplies for seconds is limited by
its power, and what it reaches then drifts with its temperature: so all ways take turns, in slices
of a tenth of a second. Prints microseconds of a layer by each, and of the gated product alone in a
burst.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from penstock_kernels import act_mul
from penstock_kernels.linear.hopper import launch
from penstock_kernels.linear.tiling import TILINGS, Tiling
from penstock_kernels.linear.tune import microseconds
from penstock_kernels.sizes import divided_up
from products import shapes
from torch import Tensor

ROWS = (192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
SLICE = 0.1  # seconds
SLICES = 10
GRAPH_ROWS = 8192  # of a graph's layers in all, at least: its launch must not count

Way = Callable[[Tensor, Tensor, Tensor], Tensor]  # x, weights of gate and up, out


def library(x: Tensor, weight: Tensor, _out: Tensor) -> Tensor:
    """cuBLAS, and the gate in a kernel of its own."""
    return act_mul(F.linear(x, weight))


def tiled(tiling: Tiling, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """The kernel for Hopper GPUs."""
    assert launch(tiling, x, weight, out)
    return out


def ways(outputs: int) -> dict[str, Way]:
    """By name."""
    found: dict[str, Way] = {"cuBLAS": library}
    for tiling in TILINGS:
        if outputs % tiling.outputs == 0:
            name = f"{tiling.rows}x{tiling.outputs}"
            found[name] = partial(tiled, tiling)
    return found


def burst(rows: int, way: Way, weight: Tensor) -> float:
    """Microseconds of the gated product in a chain of a few milliseconds."""
    x = torch.randn(rows, weight.shape[1]).to(weight)
    out = x.new_empty(rows, len(weight) // 2)
    return microseconds(lambda _: way(x, weight, out), 60.0 * max(1, rows // 128))


class Layer:
    """A layer's products of so many rows, captured."""

    def __init__(self, weights: list[Tensor], rows: int, way: Way) -> None:
        qkv, out, gate_up, down = weights
        x, mixed, h = (torch.randn(rows, w.shape[1]).to(w) for w in (qkv, out, down))
        gated = torch.empty_like(h)
        self.turns = divided_up(GRAPH_ROWS, rows)
        self.times: list[float] = []

        def products() -> None:
            F.linear(x, qkv)
            F.linear(mixed, out)
            way(x, gate_up, gated)
            F.linear(h, down)

        products()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.turns):
                products()

    def run(self) -> None:
        """For one slice of time."""
        torch.cuda.synchronize()
        began, replays = time.perf_counter(), 0
        while time.perf_counter() - began < SLICE:
            self.graph.replay()
            self.graph.replay()
            replays += 2
            torch.cuda.synchronize()
        self.times.append((time.perf_counter() - began) / (replays * self.turns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.manual_seed(0)
    weights = [torch.randn(s, dtype=torch.bfloat16, device="cuda") * 0.02 for s in shapes(1)]
    print(
        f"{torch.cuda.get_device_name()}: us of a layer in turns, of the gated product in a burst"
    )
    for rows in options.rows:
        found = ways(len(weights[2]) // 2)
        layers = {name: Layer(weights, rows, way) for name, way in found.items()}
        for _ in range(SLICES):
            for layer in layers.values():
                layer.run()
        for name, layer in layers.items():
            whole = 1e6 * statistics.median(layer.times)
            print(
                f"{rows:6} rows  {name:8} {whole:8.1f} {burst(rows, found[name], weights[2]):8.1f}"
            )


if __name__ == "__main__":
    main()
