"""`python -m tests.faults`: runs the fault driver and prints its report.

Ends with code 1 if a stream was broken or changed, or if something was left behind.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from .inject import Durations
from .report import Report
from .run import Plan, run
from .schedule import Kind


def main() -> int:
    """Runs on one worker, then on two, or on as many as `--tp` says."""
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # ends the server as well
    sizes = [given.tp] if given.tp else [1, 2]
    kinds = [Kind(name) for name in given.faults.split(",")] if given.faults else list(Kind)
    folder = Path(tempfile.mkdtemp(prefix="faults-logs-"))
    reports = []
    for size in sizes:
        plan = Plan(
            seed=given.seed,
            kinds=kinds,
            world_size=size,
            requests=given.requests,
            clients=given.clients,
            minutes=given.minutes / len(sizes),
            most=given.count,
            losses=given.losses,
            every=given.every,
            patient=given.patient,
            durations=Durations(stop=given.stop),
        )
        log = folder / f"serve-{size}.log"
        report = run(plan, log, given.options)
        show(report, log, given.json)
        reports.append(report)
    return 0 if all(report.good for report in reports) else 1


def show(report: Report, log: Path, path: Path | None) -> None:
    """Prints a report and adds it to the file of `--json`."""
    print(report.text(), f"  log: {log}", sep="\n", flush=True)
    if path is not None:
        report.write(path)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    option = parser.add_argument
    option("--minutes", type=float, default=30.0, help="time in all, without the references")
    option("--seed", type=int, default=1, help="of the requests and the faults")
    option("--faults", help="kinds, separated by commas [default: all]: " + names())
    option("--losses", type=int, help="end after this many losses of workers, of each server")
    option("--count", type=int, help="end after this many faults of each server")
    option("--every", type=float, default=0.0, help="seconds between two faults, at least")
    option("--tp", type=int, help="workers [default: one server with 1 and one with 2]")
    option("--requests", type=int, default=36, help="different requests")
    option("--clients", type=int, default=8, help="requests at once")
    option("--patient", action="store_true", help="no fault before all requests have gone on")
    option("--stop", type=float, default=30.0, help="seconds from SIGSTOP to SIGCONT")
    option("--json", type=Path, help="add the reports to this file, a line each")
    option("options", nargs="*", help="more options of `penstock serve`, after --")
    return parser.parse_args()


def names() -> str:
    """Of all kinds of faults."""
    return ", ".join(kind.value for kind in Kind)


if __name__ == "__main__":
    sys.exit(main())
