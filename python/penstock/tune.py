"""Measures the fastest matrix-multiplication kernels on this GPU: `python -m penstock.tune --model
DIR`.

For the launcher (`penstock tune`). Results go to the user's own table, which workers consult before
the bundled one: see `penstock_kernels.linear.table`. Progress goes to stderr, the table's path to
stdout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from penstock.config import read_config
from penstock.faults import BadSetting, Fault
from penstock.layers import Build, Head, Layer, Linear
from penstock.models import family, read_specification
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized

if TYPE_CHECKING:
    from penstock_kernels.linear.plan import Problem


def problems(model: Path, ranks: int) -> list[Problem]:
    """Returns the distinct matrix products of one rank of a model. Raises a Fault."""
    from penstock_kernels.linear.plan import Problem

    raw, device = read_config(model), torch.device("meta")
    cls = family(raw)
    unquantized = Unquantized(torch.bfloat16, device)
    made = cls(
        read_specification(cls, raw),
        Build(torch.bfloat16, device, Group(0, ranks), Methods(unquantized)),
    )
    if not isinstance(made, Layer):
        raise TypeError(f"{cls.__name__} is not a tree of layers")
    layers = [layer for _, layer in made.walk()]
    gated = {id(layer) for layer in layers if getattr(layer, "fused_gate", None) is not None}
    found: dict[Problem, None] = {}
    for layer in layers:
        if isinstance(layer, Linear | Head):
            outputs, inputs = layer.weights["weight"].shape
            half = id(layer) in gated
            found[Problem(outputs // (1 + half), inputs, half)] = None
    return list(found)


def tune(model: Path, ranks: int, seconds: float, report: Callable[[str], None]) -> Path:
    """Measures, and returns the path of the table. Raises a Fault, or OSError."""
    wanted = problems(model, ranks)
    if not torch.cuda.is_available():
        raise BadSetting("there is nothing to tune: torch finds no GPU here; check the driver")
    # Imported here: Triton is slow to import and not available everywhere.
    from penstock_kernels.linear import table
    from penstock_kernels.linear.tune import Options, WrongProduct
    from penstock_kernels.linear.tune import tune as measure

    name = torch.cuda.get_device_name()
    path = table.own_path(name)
    report(f"{len(wanted)} products of {model} on {name}, for {seconds:.0f} s at most")
    try:
        measured = measure(wanted, Options(seconds), report)
    except WrongProduct as error:
        raise Fault(f"a kernel computes a wrong product on this GPU: {error}") from error
    table.write(path, table.merged(path, name, measured))
    return path


def main() -> int:
    """The command line, for the launcher."""
    parser = argparse.ArgumentParser(prog="python -m penstock.tune", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    try:
        path = tune(options.model, options.tp, options.seconds, say)
    except (Fault, OSError) as error:
        say(f"error: {error}")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


def say(line: str) -> None:
    """Prints a line for the user."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
