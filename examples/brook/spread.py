"""Measure how much of a format's divergence is chance, and the errors of outputs, which vary less.

python -m examples.brook.spread orders [--orders 6]  # divergences, with other weights in a group
python -m examples.brook.spread errors               # of outputs, as `penstock quantize` has them
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import torch
from penstock.quant import RoundToNearest
from penstock.quantize import Job, Options, quantize
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from .evaluate import SHIPPED
from .formats import CALIBRATION, PLAIN, Format, Round, loaded, texts
from .quality import Judge, Questions

GROUPS = (128, 64, 32)
COUNT = 24  # instances of each kind, as in the table of formats: they decide which are scored


def in_other_order(how: Round, seed: int) -> Round:
    """Rounds matrices with their inputs in a random order; in their own one with seed 0."""
    generator = torch.Generator().manual_seed(seed)

    def rounded(matrix: Tensor) -> Tensor:
        order = torch.arange(matrix.shape[1])
        if seed:
            order = torch.randperm(matrix.shape[1], generator=generator)
        return how(matrix[:, order].contiguous())[:, order.argsort()]

    return rounded


def divergences(how: Round, judge: Judge, orders: int) -> Iterator[float]:
    """Per 1,000 tokens, one of each order."""
    for seed in range(orders):
        yield 1e3 * judge.scores(judge.model(Format(4, in_other_order(how, seed))))[1]


def measure_orders(orders: int) -> None:
    """Prints mean, deviation and range of int4's divergences."""
    judge = Judge(Questions(COUNT))
    for group in GROUPS:
        for search in (False, True):
            method = RoundToNearest(Kind.INT4, PLAIN, group, search=search)
            found = list(divergences(loaded(method), judge, orders))
            figures = f"{mean(found):.3f} +- {stdev(found):.3f}, {min(found):.3f}, {max(found):.3f}"
            print(f"{method.name}, groups of {group}: {figures}", flush=True)


def measure_errors() -> None:
    """Prints the mean over all matrices, of thousandths of the outputs' squares."""
    plain = [Options("rtn", symmetric=False), Options("rtn"), Options("gptq")]
    plain.append(Options("gptq", act_order=True))
    for group in GROUPS:
        for one in plain:
            for mse in (False, True):
                options = replace(one, group=group, mse=mse, samples=CALIBRATION)
                with tempfile.TemporaryDirectory() as directory:
                    calibration = Path(directory) / "texts"
                    calibration.write_text(texts(CALIBRATION), encoding="utf-8")
                    job = Job(SHIPPED, Path(directory) / "out", options, calibration)
                    errors = quantize(job).errors.values()
                print(f"{options}: {1e3 * mean(errors):.2f}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("orders", "errors"))
    parser.add_argument("--orders", type=int, default=6)
    chosen = parser.parse_args()
    if chosen.what == "orders":
        measure_orders(chosen.orders)
    else:
        measure_errors()


if __name__ == "__main__":
    main()
