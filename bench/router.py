"""What the router costs per streamed token: CPU, stretch of the step, memory.

The workers are a mock shard that answers at once or after a fixed step time, so everything that
is measured is the router's own. The peer is Hugging Face TGI's router (3.3.6-dev0, fat LTO) on
2 shared cores with the same kinds of load; its figures are in PEER.

    python bench/run.py router --penstock target/release/penstock \
        --shard target/release/penstock-mock-shard --load target/release/penstock-load

`--only 20:generate:256` measures that case alone, `--repeat 3` each case three times.
`--instructions` counts instructions and cold cache lines instead of time (needs valgrind).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness import instructions
from harness.processes import (
    context_switches,
    cpu_seconds,
    free_port,
    resident_mib,
    running,
    wait_ready,
)
from harness.vocabulary import write_model


@dataclass(frozen=True)
class Case:
    """One row: step time of the mock shard in ms, API, streams, tokens and words of a prompt."""

    step_ms: float
    api: str
    streams: int
    tokens: int = 256
    words: int = 20


@dataclass(frozen=True)
class Peer:
    """TGI's router on the same case: CPU us per token, gap between tokens in ms, RSS in MiB."""

    cpu_us: float
    gap_ms: float
    rss_mib: float | None


PEER = {
    Case(0, "generate", 32): Peer(14.0, 0.62, 141),
    Case(0, "generate", 256): Peer(10.5, 2.31, 340),
    Case(0, "chat", 256): Peer(11.4, 2.39, 343),
    Case(20, "generate", 1): Peer(313, 20.9, 107),
    Case(20, "generate", 32): Peer(26.9, 21.4, None),
    Case(20, "generate", 256): Peer(14.6, 23.15, 330),
    Case(20, "chat", 256): Peer(18.0, 24.0, 356),
}
CASES = [Case(0, "generate", 1), *PEER]


@dataclass(frozen=True)
class Binaries:
    """Paths of the launcher, the mock shard and the load client."""

    penstock: Path
    shard: Path
    load: Path


def measure(case: Case, address: str, pid: int, load: Path) -> dict[str, float]:
    before, switches = cpu_seconds(pid), context_switches(pid)
    command = [load, "--address", address, "--api", case.api, "--streams", str(case.streams)]
    command += ["--tokens", str(case.tokens), "--words", str(case.words)]
    command += ["--requests", str(max(case.streams, 512 if case.step_ms == 0 else 1))]
    out = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(out.stdout)
    result["cpu_us"] = (cpu_seconds(pid) - before) / result["tokens"] * 1e6
    result["switches"] = (context_switches(pid) - switches) / result["tokens"]
    result["rss_mib"] = resident_mib(pid)
    return result


def run_step_time(binaries: Binaries, model: Path, cases: list[Case]) -> list[dict[str, float]]:
    """All cases of one step time, on one server; each after a short warm-up."""
    folder = model.parent
    socket, port = folder / "shard.sock", free_port()
    socket.unlink(missing_ok=True)
    shard = [binaries.shard, "--listen", f"unix:{socket}", "--step-ms", cases[0].step_ms]
    shard += ["--vocab", 128_000, "--slots", 512, "--blocks", 40_000]
    serve = [binaries.penstock, "serve", "--model", model, "--worker", f"unix:{socket}"]
    serve += ["--port", port, "--max-slots", 512, "--max-step-tokens", 8192]
    with (
        running(list(map(str, shard)), folder / "shard.log"),
        running(list(map(str, serve)), folder / "serve.log") as server,
    ):
        address = f"127.0.0.1:{port}"
        wait_ready(f"http://{address}/ready", server)
        measure(
            Case(cases[0].step_ms, "generate", 8, tokens=16), address, server.pid, binaries.load
        )
        rows = [measure(case, address, server.pid, binaries.load) for case in cases]
        time.sleep(3)
        rows[-1]["rss_after_mib"] = resident_mib(server.pid)
    return rows


def table(rows: list[tuple[Case, dict[str, float]]]) -> str:
    lines = [
        "| step ms | API | streams | tok/s | TTFT p50 ms | gap ms (stretch) | TGI | switches/token "
        "| CPU us/token | TGI | ratio | RSS MiB | TGI |",
        "|" + "---|" * 13,
    ]
    for case, row in rows:
        peer = PEER.get(case)
        stretch = row["gap_ms_mean"] - case.step_ms
        theirs = f"{peer.cpu_us} | {row['cpu_us'] / peer.cpu_us:.2f}" if peer else "- | -"
        gap = f"{peer.gap_ms:.2f}" if peer else "-"
        memory = f"{peer.rss_mib:.0f}" if peer and peer.rss_mib else "-"
        lines.append(
            f"| {case.step_ms:g} | {case.api} | {case.streams} | {row['tokens_per_second']:,.0f} "
            f"| {row['ttft_ms_p50']:.1f} | {row['gap_ms_mean']:.2f} ({stretch:+.2f}) | {gap} "
            f"| {row['switches']:.2f} | {row['cpu_us']:.1f} | {theirs} "
            f"| {row['rss_mib']:.0f} | {memory} |"
        )
    return "\n".join(lines)


def chosen(only: str | None, repeat: int) -> list[Case]:
    """CASES, or the one that `only` names as STEP_MS:API:STREAMS[:TOKENS], each `repeat` times."""
    cases = CASES
    if only:
        step_ms, api, streams, *tokens = only.split(":")
        cases = [Case(float(step_ms), api, int(streams), *map(int, tokens))]
    return [case for case in cases for _ in range(repeat)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("penstock", "shard", "load"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--only", help="one case: STEP_MS:API:STREAMS[:TOKENS]")
    parser.add_argument("--repeat", type=int, default=1, help="times that a case is measured")
    parser.add_argument("--instructions", action="store_true", help="count them, with valgrind")
    parser.add_argument("--api", default="generate", help="of the load, with --instructions")
    args = parser.parse_args()
    if args.instructions:
        instructions.report(args)
        return
    binaries = Binaries(args.penstock, args.shard, args.load)
    rows: list[tuple[Case, dict[str, float]]] = []
    chosen_cases = chosen(args.only, args.repeat)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model)
        for step_ms in sorted({case.step_ms for case in chosen_cases}):
            cases = [case for case in chosen_cases if case.step_ms == step_ms]
            rows += zip(cases, run_step_time(binaries, model, cases), strict=True)
    print(table(rows))
    for case, row in rows:
        if "rss_after_mib" in row:
            print(f"RSS 3 s after the {case.step_ms:g} ms cases: {row['rss_after_mib']:.0f} MiB")
    if args.json:
        args.json.write_text(json.dumps([vars(case) | row for case, row in rows], indent=1))


if __name__ == "__main__":
    main()
