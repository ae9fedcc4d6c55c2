"""How far the kernels of quantized weights are from the dequantized product in float32.

    python bench/run.py weight_errors [--seconds 50]

Markdown: per format, dtype and op the largest and the mean relative error ||out - exact|| /
||exact|| of a row, over the test cases of the op. `exact` is the product of the same inputs with
the dequantized matrix, all in float32. What is left is the rounding of inputs, sums and results,
not that of the weights. Where a GPU multiplies float8, it rounds the inputs of many rows to e4m3:
these cases have rows of their own.

On a GPU the Triton kernels run, on the small and full cases; elsewhere the reference in PyTorch, in
the dtype of the case, on the small ones. Cases are in a random order, the same in each run; after
`--seconds` no other one begins, because compiling kernels may take minutes.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any

import penstock_kernels  # noqa: F401  (registers the ops)
import torch
from penstock_kernels.case import Case, Size, cases
from penstock_kernels.op import OPS, Op
from penstock_kernels.packed_linear.weight import Kind
from torch import Tensor

NAMES = ("packed_linear", "packed_norm_linear", "packed_act_linear", "expert_mlp")
ROUNDED_INPUTS = 0.025  # cases that may round inputs to float8 have a larger tolerance than this


def format_of(case: Case) -> str | None:
    """The first words of a case's row; None if its weights are not quantized."""
    kind = case.name.partition("-")[0]
    if kind not in [one.value for one in Kind]:
        return None
    return f"{kind}, inputs may be e4m3" if case.tolerance > ROUNDED_INPUTS else kind


def row_errors(out: Tensor, exact: Tensor) -> list[float]:
    """||out - exact|| / ||exact|| of each row that is not zero."""
    norms = exact.norm(dim=-1)
    errors = (out.float() - exact).norm(dim=-1) / norms
    return [float(error) for error in errors[norms > 0].tolist()]


def measured(op: Op[..., Any], arguments: dict[str, Any]) -> list[float]:
    """The errors of the rows of a case."""
    run = op.triton if arguments["x"].is_cuda else op.reference
    floats = {
        name: value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }
    out, exact = run(**arguments), op.reference(**floats)
    if isinstance(out, tuple):  # with the sum that was normalised
        out, exact = out[0], exact[0]
    return row_errors(out, exact)


def table(errors: dict[tuple[str, str], dict[str, list[float]]]) -> str:
    """Markdown, of the errors of rows by (format, dtype) and op."""
    titles = ("weights", "activations", *(f"`{name}`" for name in NAMES))
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for (weights, dtype), by_op in sorted(errors.items()):
        found = [by_op.get(name, []) for name in NAMES]
        cells = [f"{max(rows):.1e}, {sum(rows) / len(rows):.1e}" if rows else "" for rows in found]
        lines.append(f"| {weights} | {dtype} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=50, help="no case begins after these")
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    device, sizes = torch.device("cuda" if cuda else "cpu"), (Size.SMALL, *[Size.FULL] * cuda)
    chosen = [(OPS[name], one) for name in NAMES for one in cases(OPS[name]) if one.size in sizes]
    chosen = [(op, case) for op, case in chosen if format_of(case)]
    random.Random(0).shuffle(chosen)
    errors: dict[tuple[str, str], dict[str, list[float]]] = {}
    began, done = time.monotonic(), 0
    while done < len(chosen) and time.monotonic() - began < options.seconds:
        op, case = chosen[done]
        done += 1
        torch.manual_seed(done)
        with torch.inference_mode():
            arguments = case.make(device)
            found = measured(op, arguments)
        row = str(format_of(case)), str(arguments["x"].dtype).removeprefix("torch.")
        errors.setdefault(row, {}).setdefault(op.name, []).extend(found)
    name = f"{torch.cuda.get_device_name()}, Triton" if cuda else "CPU, the reference in PyTorch"
    print(f"{name}; {done} of {len(chosen)} cases; largest error of a row, and mean:\n")
    print(table(errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
