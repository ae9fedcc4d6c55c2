"""Mutation testing of the Rust side: `make mutants`, or `python tests/mutants/rust.py --help`.

cargo-mutants makes small wrong changes, one at a time, in a copy of the tree, and runs the tests
that could notice. `.cargo/mutants.toml` says what is left out, and why.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "target/mutants"
# What is changed, and the tests that could notice.
PARTS = {
    "scheduler": (["--package", "penstock-scheduler"], ["--lib", "--tests"]),
    "engine": (
        ["--package", "penstock-engine", "--exclude", "router/engine/src/shard/**"],
        ["--lib", "--test", "all"],
    ),
}
CAUGHT = ("CaughtMutant", "Timeout")
# Exit codes of cargo-mutants: all caught; some missed; some ran until their time was up.
FINE = (0, 2, 3)


def main() -> None:
    """Runs a sample of a part's mutants and prints its score."""
    parser = argparse.ArgumentParser(prog="python tests/mutants/rust.py", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--shard", default="0/8", metavar="K/N", help="every N-th, from K (0/8)")
    parser.add_argument("--report", nargs="+", type=Path, help="only the score of these folders")
    options = parser.parse_args()
    stores = options.report or [STORE / options.part]
    if not options.report:
        _run(options.part, options.shard, stores[0])
    report([store / "mutants.out" for store in stores])


def _run(part: str, shard: str, store: Path) -> None:
    if shutil.which("cargo-mutants") is None:
        sys.exit("cargo-mutants is missing: cargo install cargo-mutants --locked")
    store.mkdir(parents=True, exist_ok=True)
    mutants, tests = PARTS[part]
    sample = ["--shard", shard, "--sharding", "round-robin", "--output", str(store)]
    # As arguments of cargo, not of its tests alone, they also limit what is built.
    command = ["cargo", "mutants", *mutants, *sample, *(f"--cargo-arg={test}" for test in tests)]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code not in FINE:
        sys.exit(code)


def report(stores: list[Path]) -> None:
    """Prints what was missed, and the share that was caught."""
    results: Counter[str] = Counter()
    for store in stores:
        for outcome in json.loads((store / "outcomes.json").read_text())["outcomes"]:
            if outcome["scenario"] == "Baseline":
                continue
            results[outcome["summary"]] += 1
            if outcome["summary"] == "MissedMutant":
                _say(f"missed: {outcome['scenario']['Mutant']['name']}")
    caught = sum(results[name] for name in CAUGHT)
    viable = caught + results["MissedMutant"]
    low, high = interval(caught, viable)
    _say(
        f"{caught} of {viable} viable mutants caught: {caught / max(viable, 1):.1%} "
        f"(95 % interval {low:.1%} to {high:.1%}); {results['Unviable']} do not compile"
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def interval(caught: int, viable: int) -> tuple[float, float]:
    """Wilson's score interval of 95 % of a share."""
    if viable == 0:
        return 0.0, 1.0
    z, share = 1.96, caught / viable
    centre = share + z * z / (2 * viable)
    spread = z * math.sqrt(share * (1 - share) / viable + z * z / (4 * viable * viable))
    scale = 1 + z * z / viable
    return (centre - spread) / scale, (centre + spread) / scale


if __name__ == "__main__":
    main()
