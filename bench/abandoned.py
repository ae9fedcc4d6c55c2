"""How costly grammars of clients that left delay quick ones: see docs/reliability.md.

    python bench/run.py abandoned --address 127.0.0.1:3000 [--seconds 20] [--rate 20]

Clients send regular expressions that take long to compile, and leave after `--stay` seconds.
Another client sends a new grammar each second that compiles in some 0.04 s. The table shows how
long that client waits for its status, before the others come and beside them, and how long
compilations continue after all have left. With --others the quick grammars come from 127.0.0.2, a
client of their own.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import threading
import time
from collections import Counter
from pathlib import Path


def compilations() -> int:
    """Processes that compile one grammar each, on this machine: children of a helper."""
    parents, helpers = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        parents[int(folder.name)] = int(stat[1])
        if b"penstock.grammar.compiler_main" in command:
            helpers.add(int(folder.name))
    return sum(parents[process] in helpers for process in helpers)


class Drill:
    """Clients of one server."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.draw = random.Random(args.seed)
        self.answers: Counter[str] = Counter()  # of those that leave

    def _open(self, source: str, seconds: float) -> http.client.HTTPConnection:
        host, port = self.args.address.rsplit(":", 1)
        return http.client.HTTPConnection(host, int(port), seconds, source_address=(source, 0))

    def _send(self, line: http.client.HTTPConnection, regex: str) -> None:
        body = {
            "model": self.args.model,
            "prompt": "It is ",
            "max_tokens": 4,
            "guided_regex": regex,
        }
        fields = {"guided_complete": False, "stream": True}
        line.request(
            "POST",
            "/v1/completions",
            json.dumps(body | fields),
            {"content-type": "application/json"},
        )

    def leave(self, number: int) -> None:
        """A client that asks for a costly grammar and leaves."""
        line = self._open("127.0.0.1", self.args.stay)
        try:
            self._send(line, f".{{{number % 29_000 + 1},30000}}")
            self.answers[str(line.getresponse().status)] += 1
        except TimeoutError:
            self.answers["left"] += 1
        except OSError as error:
            self.answers[type(error).__name__] += 1
        finally:
            line.close()

    def quick(self) -> float:
        """Seconds until the status of an answer with a fresh grammar. Raises RuntimeError unless it
        is 200."""
        letters = "".join(self.draw.choices("abcdefghijklmnopqrstuvwxyz", k=10))
        line = self._open("127.0.0.2" if self.args.others else "127.0.0.1", 120)
        began = time.perf_counter()
        self._send(line, f"{letters}[a-z]{{1,900}}")
        answer = line.getresponse()
        took = time.perf_counter() - began
        answer.read()
        line.close()
        if answer.status != 200:
            raise RuntimeError(f"a quick grammar was answered with {answer.status}")
        return took

    def waits(self, seconds: float) -> list[float]:
        """Of a quick grammar each second."""
        end = time.perf_counter() + seconds
        found = []
        while time.perf_counter() < end:
            found.append(self.quick())
            time.sleep(max(0.0, 1 - found[-1]))
        return found

    def run(self) -> None:
        """Prints the table."""
        args = self.args
        self.quick()  # starts the process that compiles
        undisturbed = self.waits(5)
        over = threading.Event()

        def arrive() -> None:
            number = self.draw.randrange(29_000)
            while not over.wait(1 / args.rate):
                number += 1
                threading.Thread(target=self.leave, args=(number,), daemon=True).start()

        threading.Thread(target=arrive, daemon=True).start()
        time.sleep(1)
        beside = self.waits(args.seconds)
        over.set()
        began = time.perf_counter()
        time.sleep(args.stay)
        while compilations() and time.perf_counter() - began < 120:
            time.sleep(0.02)
        print("| a quick grammar waits | median s | longest s |\n|---|---|---|")
        for name, found in (("alone", undisturbed), ("beside those that leave", beside)):
            print(f"| {name} | {statistics.median(found):.2f} | {max(found):.2f} |")
        print(f"\ncompilations end {time.perf_counter() - began:.1f} s after the last request")
        print("those that left: " + ", ".join(f"{n} {what}" for what, n in self.answers.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--address", default="127.0.0.1:3000", help="host and port of a server on this machine")
    option("--model", default="brook")
    option("--seconds", type=float, default=20.0)
    option("--rate", type=float, default=20.0, help="clients that leave, per second")
    option("--stay", type=float, default=0.3, help="seconds until each leaves")
    option("--seed", type=int, default=0)
    option("--others", action="store_true", help="quick grammars come from another address")
    Drill(parser.parse_args()).run()


if __name__ == "__main__":
    main()
