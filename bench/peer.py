"""Rows of the serving table by Penstock and by another server, in turns on one GPU.

    bench/h200.sh peer 8b --rows c256 prefill --turns peer penstock peer penstock \\
        --peer 'vllm serve {model} --port {port} --served-model-name {name}'

GPUs of one kind differ by some percent in what they sustain, so figures of two servers from two
machines say less than both from one. The other server must answer `/health` with 200 once it can
serve, and `/v1/completions`. Each turn starts a server, warms it up as `bench/h200.py` does, and
prints its rows; the first turn of each finds nothing compiled, unless its own caches keep that.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import time

from h200 import ROWS, WARM_UP, Bench, ceilings, server_options, settle_option, show
from measure import Figures
from shapes import SHAPES


class Peer(Bench):
    """The other server."""

    ready = "/health"
    ready_timeout = 600.0  # some compile for minutes

    def command(self) -> list[str]:
        command: str = self.args.peer
        places = {"model": str(self.folder), "port": str(self.port), "name": self.args.shape}
        for place, value in places.items():
            command = command.replace("{" + place + "}", shlex.quote(value))
        return shlex.split(command)


def turn(bench: Bench, name: str) -> dict[str, Figures]:
    """The rows by one start of a server."""
    with bench.server() as (process, start):
        found = {"start": start}
        show(f"{name}: start", start)
        bench.row(WARM_UP, process)
        time.sleep(bench.args.settle)
        for row in bench.args.rows:
            found[row] = bench.row(ROWS[row], process)
            show(f"{name}: {row}", found[row])
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("shape", choices=["brook", *SHAPES])
    option("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW")
    option("--turns", nargs="+", choices=["penstock", "peer"], default=["peer", "penstock"])
    option("--peer", required=True, help="the other server's command, in one word")
    server_options(parser)
    settle_option(parser)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    benches = {"penstock": Bench(args), "peer": Peer(args)}
    benches["penstock"].prepare()
    shutil.rmtree(benches["penstock"].cache, ignore_errors=True)
    if args.shape != "brook":
        show("ceilings", ceilings())
    found = [(name, turn(benches[name], name)) for name in args.turns]
    (args.out / f"peer-{args.shape}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
