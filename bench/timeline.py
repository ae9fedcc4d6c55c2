"""A timeline of the worker under load, and the share of time in which its device had no work.

    bench/h200.sh timeline 1b --streams 32
    bench/h200.sh timeline brook --streams 4 --input 64 --output 64 --serve --device cpu
    python bench/run.py timeline brook --trace FILE   # an existing one, of worker/run/trace.py

Starts a worker that keeps its timeline, a server that attaches it, and clients, `--rounds` jobs
after each other for every stream; writes trace.json (for chrome://tracing or Perfetto) and
timeline.png, the second with the most steps. A step is on the device from its first event to its
last. The device may still wait within a step while the host launches it: `at most` counts that time
as idle too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from h200 import Bench, checked, server_options, settle_option, show
from harness.measure import figures
from harness.shapes import SHAPES
from harness.workload import Shape, random_jobs

Event = dict[str, Any]
LANES = ("inbox", "launch", "device", "reply")
LAUNCH, DEVICE = 1, 2
SHOWN = 0.02  # seconds in the picture's lower half
STOP_SECONDS = 60


def lanes(events: list[Event]) -> list[list[Event]]:
    """The events of each lane, in order."""
    found = [[e for e in events if e["tid"] == lane] for lane in range(len(LANES))]
    return [sorted(lane, key=lambda e: float(e["ts"])) for lane in found]


def fullest_second(events: list[Event]) -> tuple[float, list[Event]]:
    """The second in which most steps ended on the device: its begin in microseconds, and the
    events of those steps."""
    ends = {e["name"]: e["ts"] + e["dur"] for e in events if e["tid"] == DEVICE}
    steps = Counter(int(end / 1e6) for end in ends.values())
    begin = max(steps, key=lambda second: steps[second]) * 1e6
    return begin, [e for e in events if begin <= ends[e["name"]] < begin + 1e6]


def idle_share(events: list[Event], launching: bool) -> float:
    """Share of the time from the first step to the last in which none was on the device; with
    `launching`, a step that the host is still launching is not there yet."""
    launched = {e["name"]: e["ts"] + e["dur"] for e in events if e["tid"] == LAUNCH}
    device = lanes(events)[DEVICE]
    idle, until = 0.0, device[0]["ts"]
    for event in device:
        begin, end = event["ts"], event["ts"] + event["dur"]
        if launching and end > launched[event["name"]]:  # on a CPU, launching is the work
            begin = max(begin, launched[event["name"]])
        idle += max(begin - until, 0.0)
        until = max(until, end)
    whole = until - device[0]["ts"]
    return float(idle / whole) if whole else 0.0


def describe(events: list[Event]) -> str:
    """Steps and idle shares of some events."""
    device = lanes(events)[DEVICE]
    tokens = sum(e["args"]["tokens"] for e in device)
    least, most = (100 * idle_share(events, launching) for launching in (False, True))
    return f"{len(device)} steps, {tokens} tokens, device idle {least:.1f} % (at most {most:.1f} %)"


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


def read(trace: Path) -> list[Event]:
    """The complete events of a trace."""
    events: list[Event] = json.loads(trace.read_text())["traceEvents"]
    return [e for e in events if e["ph"] == "X"]


@contextmanager
def worker(socket: Path, trace: Path) -> Iterator[None]:
    """A worker that keeps its timeline, and writes it when the block is left."""
    command = [sys.executable, "-m", "penstock.worker", "--socket", str(socket)]
    with subprocess.Popen([*command, "--trace", str(trace)], stdin=subprocess.PIPE) as process:
        try:
            while not socket.exists() and process.poll() is None:
                time.sleep(0.05)
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()  # the end of its lease
            process.wait(timeout=STOP_SECONDS)


def record(args: argparse.Namespace, trace: Path) -> None:
    """Runs the load, and leaves the trace."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "worker.sock"
        args.serve = ["--worker", f"unix:{socket}", *args.serve]
        bench = Bench(args)
        bench.prepare()
        shape = Shape(args.input, args.output)
        with worker(socket, trace), bench.server():
            bench.client.run(random_jobs(bench.source(), Shape(32, 8), 32), args.streams)
            time.sleep(args.settle)
            jobs = random_jobs(bench.source(), shape, args.rounds * args.streams)
            show("load", figures(checked(bench.client.run(jobs, args.streams))))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("shape", choices=["brook", *SHAPES])
    option("--streams", type=int, default=32, help="answers at once")
    option("--input", type=int, default=512, help="tokens of a prompt")
    option("--output", type=int, default=1024, help="tokens of an answer")
    option("--rounds", type=int, default=2, help="jobs of each stream, one after another")
    option("--trace", type=Path, help="a trace to read, instead of recording one")
    server_options(parser)
    settle_option(parser)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    trace = args.trace or args.out / "trace.json"
    if args.trace is None:
        record(args, trace)
    events = read(trace)
    begin, second = fullest_second(events)
    medians = [statistics.median(e["dur"] for e in lane) for lane in lanes(second)]
    title = (
        f"{args.shape}, {args.streams} streams, the second with the most steps: {describe(second)}"
    )
    print(title)
    print("medians in us:", ", ".join(f"{n} {v:.0f}" for n, v in zip(LANES, medians, strict=True)))
    draw(second, begin, title, args.out / "timeline.png")


if __name__ == "__main__":
    main()
