"""Times all linears of a decode step as one CUDA graph, beside cuBLAS and what memory allows.

    PYTHONPATH=python:kernels python bench/linears.py 1b 8b

Distinct random weights of every layer, bfloat16. `linears`: the products alone, in a row.
`with norms`: norms, gates and residual sums too, as a model runs them without its attention.
The floor reads every weight once at the bandwidth of a large copy, measured in the same run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from penstock_kernels import act_mul, linear, norm_linear, rms_norm
from penstock_kernels.linear.tune import replays
from shapes import SHAPES
from step import copy_bandwidth
from torch import Tensor

CUDA = torch.device("cuda")
ROWS = (1, 8, 16, 32, 64)
EPS = 1e-5


@dataclass(frozen=True)
class Layer:
    """The weights of one layer."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Model:
    """All weights that a step multiplies with."""

    layers: list[Layer]
    head: Tensor
    scale: Tensor

    @property
    def bytes(self) -> int:
        """What a step must read at least."""
        parts: list[Tensor] = [w for layer in self.layers for w in vars(layer).values()]
        return sum(w.nbytes for w in parts) + self.head.nbytes


def random(outputs: int, inputs: int) -> Tensor:
    return torch.randn(outputs, inputs, dtype=torch.bfloat16, device=CUDA) / math.sqrt(inputs)


def build(name: str) -> Model:
    shape = SHAPES[name]
    hidden, middle = int(shape["hidden_size"]), int(shape["intermediate_size"])
    heads, kv_heads = int(shape["num_attention_heads"]), int(shape["num_key_value_heads"])
    wide = hidden // heads * (heads + 2 * kv_heads)
    layers = [
        Layer(
            random(wide, hidden), random(hidden, hidden), random(2 * middle, hidden),
            random(hidden, middle),
        )
        for _ in range(int(shape["num_hidden_layers"]))
    ]  # fmt: skip
    scale = torch.rand(hidden, dtype=torch.bfloat16, device=CUDA)
    return Model(layers, random(int(shape["vocab_size"]), hidden), scale)


def products(model: Model, x: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The products, each fed by the one before."""
    hidden = x.shape[1]
    for layer in model.layers:
        x = multiply(multiply(x, layer.qkv)[:, :hidden], layer.out)
        x = multiply(multiply(x, layer.gate_up)[:, : layer.down.shape[1]], layer.down)
    return multiply(x, model.head)


def fused(model: Model, x: Tensor) -> Tensor:
    """Products, norms and gates by the ops that a model uses."""
    residual, hidden = None, x.shape[1]
    for layer in model.layers:
        x, residual = norm_linear(x, residual, model.scale, EPS, layer.qkv)
        x = linear(x[:, :hidden], layer.out)
        x, residual = norm_linear(x, residual, model.scale, EPS, layer.gate_up, gated=True)
        x = linear(x, layer.down)
    return norm_linear(x, residual, model.scale, EPS, model.head)[0]


def apart(model: Model, x: Tensor) -> Tensor:
    """The same by cuBLAS and a kernel for every norm and gate."""
    residual, hidden = torch.zeros_like(x), x.shape[1]
    for layer in model.layers:
        x, residual = rms_norm(x, model.scale, EPS, residual)
        x = F.linear(F.linear(x, layer.qkv)[:, :hidden], layer.out)
        x, residual = rms_norm(x, model.scale, EPS, residual)
        x = F.linear(act_mul(F.linear(x, layer.gate_up)), layer.down)
    return F.linear(rms_norm(x, model.scale, EPS, residual)[0], model.head)


def milliseconds(step: Callable[[], Tensor]) -> float:
    """Median time of a replay."""
    return statistics.median(replays(step, 15)[3:])


def row(model: Model, rows: int) -> str:
    x = torch.randn(rows, model.head.shape[1], dtype=torch.bfloat16, device=CUDA)
    steps = (
        lambda: products(model, x, linear),
        lambda: products(model, x, F.linear),
        lambda: fused(model, x),
        lambda: apart(model, x),
    )
    return f"{rows:6}" + "".join(f"{milliseconds(step):12.3f}" for step in steps)


def main() -> int:
    parser = argparse.ArgumentParser(description="Times the linears of decode steps on a GPU.")
    parser.add_argument("shapes", nargs="+", choices=list(SHAPES))
    shapes = parser.parse_args().shapes
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s; times in ms")
    for name in shapes:
        torch.manual_seed(0)
        model = build(name)
        print(f"{name}, floor {1e3 * model.bytes / bandwidth:.3f}")
        print(f"{'rows':>6}{'linears':>12}{'cuBLAS':>12}{'with norms':>12}{'cuBLAS':>12}")
        for rows in ROWS:
            print(row(model, rows), flush=True)
        del model
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
