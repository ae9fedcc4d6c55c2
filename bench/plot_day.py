"""Draw the simulated day: ``python bench/plot_day.py day.csv day.png``.

The CSV comes from ``cargo run --release -p penstock-scheduler --example day -- day.csv``; its
columns are hour, waiting, running, kv_percent, ttft_p50_ms, ttft_p99_ms, tokens_per_second.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path


def read(path: Path) -> dict[str, list[float]]:
    """Read the CSV into one list of numbers per column."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise SystemExit(f"{path} has no rows; did the simulation finish?")
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def draw(day: dict[str, list[float]], path: Path) -> None:
    """Draw four panels over the hours of the day into an image."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        ("sequences", {"running": "running", "waiting": "waiting"}),
        ("KV blocks leased, %", {"kv_percent": "leased"}),
        ("time to first token, ms", {"ttft_p50_ms": "median", "ttft_p99_ms": "99th percentile"}),
        ("tokens per second", {"tokens_per_second": "generated"}),
    ]
    figure, axes = pyplot.subplots(len(panels), 1, sharex=True, figsize=(9, 10))
    for axis, (label, lines) in zip(axes, panels, strict=True):
        for column, name in lines.items():
            axis.plot(day["hour"], day[column], label=name, linewidth=1)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(loc="upper left", frameon=False)
    axes[2].set_yscale("log")
    axes[2].set_ylim(bottom=10)
    axes[-1].set_xlabel("hour")
    axes[-1].set_xlim(0, 24)
    axes[0].set_title("A day of 1,000,000 requests through one scheduler (simulated workers)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Entry point."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: plot_day.py <day.csv> <day.png>")
    draw(read(Path(sys.argv[1])), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
