"""Measures which kernel multiplies fastest, per shape and number of rows: the table that ships.

    PYTHONPATH=kernels python kernels/tune_linear.py [--shapes 8b,1b/2] [--write | --out FILE]

A shape is OUTPUTSxINPUTS of a linear's weights, with g before it gate and up, OUTPUTS rows each; or
8b, 1b and their halves 8b/2, 1b/2 for all linears of a Llama (of one of two ranks). The table has
these shapes' plans and times in place of what the one that ships has for them. How they are
measured: `penstock_kernels.linear.tune`. Users have `penstock tune`, for a table of their own.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch
from penstock_kernels.linear.plan import Problem
from penstock_kernels.linear.table import merged, shipped_path, write
from penstock_kernels.linear.tune import MEASURED, Options, tune

MODELS = {
    "8b": "6144x4096,4096x4096,g14336x4096,4096x14336,128256x4096",
    "1b": "3072x2048,2048x2048,g8192x2048,2048x8192,128256x2048",
    "8b/2": "3072x4096,4096x2048,g7168x4096,4096x7168,64128x4096",
    "1b/2": "1536x2048,2048x1024,g4096x2048,2048x4096,64128x2048",
}


def parse(text: str) -> list[Problem]:
    """The shapes of the command line, each once."""
    names = ",".join(MODELS.get(name, name) for name in text.split(","))
    problems: dict[Problem, None] = {}
    for item in names.split(","):
        outputs, inputs = map(int, item.removeprefix("g").split("x"))
        problems[Problem(outputs, inputs, item.startswith("g"))] = None
    return list(problems)


def main() -> int:
    parser = argparse.ArgumentParser(description="Tunes the linears of a CUDA device.")
    parser.add_argument("--shapes", default=",".join(MODELS), type=parse, metavar="LIST")
    parser.add_argument(
        "--rows", type=int, nargs="+", choices=MEASURED, default=MEASURED, help="only these"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="for all shapes, at most")
    parser.add_argument("--free", action="store_true", help="fastest plan of every bucket alone")
    parser.add_argument("--write", action="store_true", help="into the installed package")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the table, somewhere else")
    options = parser.parse_args()
    began = time.monotonic()
    wanted = Options(options.seconds, options.free, tuple(options.rows))
    measured = tune(options.shapes, wanted, partial(print, flush=True))
    name = torch.cuda.get_device_name()
    text = merged(shipped_path(name), name, measured)
    for path in [*([shipped_path(name)] if options.write else []), *filter(None, [options.out])]:
        write(path, text)
        print(f"written: {path}")
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
