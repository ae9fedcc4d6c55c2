"""Reads the timeline that `python -m penstock.worker --trace FILE` wrote, and draws a second of it.

    python bench/timeline.py trace.json [--png timeline.png]

Prints, for the second with the most tokens: steps, tokens, the share of time in which the device
had no work, and the medians of the lanes.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

Event = dict[str, Any]
LANES = ("inbox", "launch", "device", "reply")
SHOWN = 0.02  # seconds in the picture's lower half


def busiest_second(events: list[Event]) -> tuple[float, list[Event]]:
    """Its begin in microseconds, and the events whose step ended on the device in it."""
    ends = {e["name"]: e["ts"] + e["dur"] for e in events if e["tid"] == 2}
    tokens: Counter[int] = Counter()
    for event in events:
        if event["tid"] == 2:
            tokens[int(ends[event["name"]] / 1e6)] += event["args"]["tokens"]
    begin = max(tokens, key=lambda second: tokens[second]) * 1e6
    return begin, [e for e in events if begin <= ends[e["name"]] < begin + 1e6]


def idle_share(device: list[Event]) -> float:
    """Share of the time from the first step to the last in which none was on the device."""
    device = sorted(device, key=lambda e: float(e["ts"]))
    idle, until = 0.0, device[0]["ts"]
    for event in device:
        idle += max(event["ts"] - until, 0.0)
        until = max(until, event["ts"] + event["dur"])
    return float(idle / (until - device[0]["ts"]))


def draw(events: list[Event], begin: float, title: str, file: Path) -> None:
    """Above, the whole second of the device; below, all lanes for its middle 20 ms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(
        2, 1, figsize=(14, 5), height_ratios=(1, 3), constrained_layout=True
    )
    for axis, (first, length) in ((top, (0.0, 1000.0)), (bottom, (500.0, SHOWN * 1e3))):
        for lane, name in enumerate(LANES):
            if axis is top and name != "device":
                continue
            rows = [e for e in events if e["tid"] == lane]
            for parity, color in ((0, "#1f77b4"), (1, "#ff9f40")):
                bars = [
                    ((e["ts"] - begin) / 1e3, e["dur"] / 1e3)
                    for e in rows
                    if int(e["name"].split()[1]) % 2 == parity
                ]
                axis.broken_barh(bars, (-lane - 0.4, 0.8), facecolors=color)
        axis.set_xlim(first, first + length)
        axis.set_yticks([-i for i in range(len(LANES))] if axis is bottom else [-2])
        axis.set_yticklabels(LANES if axis is bottom else ["device"])
    bottom.set_xlabel("ms")
    top.set_title(title)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Reads a worker's timeline.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--png", type=Path, help="draws the second to this file")
    options = parser.parse_args()
    events = json.loads(options.trace.read_text())["traceEvents"]
    begin, second = busiest_second([e for e in events if e["ph"] == "X"])
    lanes = [[e for e in second if e["tid"] == lane] for lane in range(len(LANES))]
    idle = idle_share(lanes[2])
    tokens = sum(e["args"]["tokens"] for e in lanes[2])
    medians = {
        n: statistics.median(e["dur"] for e in es) for n, es in zip(LANES, lanes, strict=True)
    }
    title = f"{len(lanes[2])} steps, {tokens} tokens, device idle {100 * idle:.1f} %"
    print(title + "; medians in us: " + ", ".join(f"{n} {v:.0f}" for n, v in medians.items()))
    if options.png:
        draw(second, begin, title, options.png)


if __name__ == "__main__":
    main()
