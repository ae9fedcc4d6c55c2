"""Writes a quantized checkpoint: `python -m penstock.quantize MODEL OUT --method gptq`.

For the launcher (`penstock quantize`). Progress goes to stderr, the report to stdout.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from penstock.faults import BadSetting, Fault
from penstock.quantize.job import quantize
from penstock.quantize.options import METHODS, Job, Options


def _job(arguments: argparse.Namespace) -> Job:
    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise BadSetting("device is cuda, but torch finds no GPU; use --device cpu")
    options = Options(
        method=arguments.method,
        bits=arguments.bits,
        group=arguments.group,
        symmetric=not arguments.asymmetric,
        act_order=arguments.act_order,
        mse=arguments.mse,
        damp=arguments.damp,
        samples=arguments.samples,
        length=arguments.length,
    )
    return Job(arguments.model, arguments.out, options, arguments.calibration, device)


def main() -> int:
    """The command line, for the launcher."""
    parser = argparse.ArgumentParser(prog="python -m penstock.quantize", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--method", required=True, help=", ".join(METHODS))
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--asymmetric", action="store_true")
    parser.add_argument("--act-order", action="store_true")
    parser.add_argument("--mse", action="store_true")
    parser.add_argument("--damp", type=float, default=0.01)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    try:
        report = quantize(_job(parser.parse_args()))
    except (Fault, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{report.text()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
