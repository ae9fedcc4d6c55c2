"""`python -m tests.faults.plot RUNS.json docs/pauses.png`: the pauses that lost workers caused.

RUNS.json is what `--json` of the driver wrote.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .report import quantile
from .schedule import LOSSES

NAMES = {kind.value for kind in LOSSES}


def main() -> None:
    """Draws all runs of a file."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.plot", description=__doc__)
    parser.add_argument("runs", type=Path, help="file of --json")
    parser.add_argument("image", type=Path, help="PNG or SVG file to write")
    given = parser.parse_args()
    runs = [json.loads(line) for line in given.runs.read_text().splitlines()]
    draw(runs, given.image)


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Above, the longest pause at each lost worker, in order; below, the share of pauses up to a
    length.

    `runs`: reports as `Report.write` stores them.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    over_time, shares = figure.subplots(2, 1)
    for run in runs:
        pauses = [pause for pause in run["pauses"] if pause["kind"] in NAMES]
        if not pauses:
            continue
        longest: dict[int, float] = {}
        for pause in pauses:
            longest[pause["fault"]] = max(pause["seconds"], longest.get(pause["fault"], 0.0))
        over_time.plot(
            longest.keys(), longest.values(), ".", label=f"{run['name']}, seed {run['seed']}"
        )
        seconds = sorted(pause["seconds"] for pause in pauses)
        rising = [100 * (place + 1) / len(seconds) for place in range(len(seconds))]
        label = (
            f"{run['name']}, seed {run['seed']}: {run['losses']} losses, {len(seconds)} streams, "
            f"median {quantile(seconds, 0.5):.1f} s, p99 {quantile(seconds, 0.99):.1f} s"
        )
        shares.step(seconds, rising, where="post", label=label)
    over_time.set(xlabel="fault", ylabel="longest pause of a stream, s")
    shares.set(xlabel="pause of a stream, s", ylabel="share of streams, %")
    for axes in (over_time, shares):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    over_time.set_ylim(bottom=0)
    shares.set_xlim(left=0)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
