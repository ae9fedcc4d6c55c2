"""Mutation testing of the Python worker: `make mutants PART=python`.

Small wrong changes are made to `worker/` and `layers/`, one at a time, in a copy of the tree; each
is tested by the tests that run the changed line. What no test notices is listed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from changes import Mutant, mutants, mutated
from cover import Map
from excluded import excluded
from rust import interval

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "target/mutants/python"
SOURCES = ("python/penstock/worker", "python/penstock/layers")
TESTS = ("tests/worker", "tests/parity")
# Imported once, before each mutant's process is forked; nothing of Penstock's is.
WARM = ("numpy", "torch", "transformers", "pytest", "grpc", "safetensors.torch", "hypothesis")
SLACK = 40  # seconds that the tests of a mutant may take beyond three times what they should


def main() -> None:
    """Makes a sample of the changes and says what was noticed."""
    options = _options()
    STORE.mkdir(parents=True, exist_ok=True)
    results = STORE / "results.jsonl"
    if not (options.go_on or options.report or options.again):  # of other code, perhaps
        results.unlink(missing_ok=True)
    sources = _files(SOURCES, "*.py")
    chosen, left_out = _sample(sources, options)
    if not options.report:
        tree = _tree(options.shard)
        table = Map(STORE / "map.json", tree, sources)
        with _importable(tree):
            table.refresh(_files(TESTS, "test_*.py"))
            _test_all(chosen, table, results, options)
    _report(chosen, left_out, _read(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/mutants/python.py", description=__doc__)
    add = parser.add_argument
    add("--sample", type=int, default=160, help="how many changes to make (160)")
    add("--seed", type=int, default=1, help="of the sample (1)")
    add("--shard", default="1/1", help="I/N: the I-th of N parts of the sample")
    add("--seconds", type=float, default=20, help="of tests for each change, at most (20)")
    add("--minutes", type=float, default=math.inf, help="after which no further change is begun")
    add("--go-on", action="store_true", help="keep the results there are, and test the rest")
    add("--again", metavar="TEXT", help="test changes again of whose name or result TEXT is a part")
    add("--report", action="store_true", help="only say what is known")
    return parser.parse_args()


def _files(directories: tuple[str, ...], pattern: str) -> list[str]:
    found = (path for directory in directories for path in (ROOT / directory).rglob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def _sample(sources: list[str], options: argparse.Namespace) -> tuple[list[Mutant], Counter[str]]:
    """The chosen changes, and how many were left out, by reason."""
    left_out: Counter[str] = Counter()
    candidates = []
    for path in sources:
        for mutant in mutants(ROOT, path):
            reason = excluded(ROOT, mutant)
            if reason is None:
                candidates.append(mutant)
            else:
                left_out[reason] += 1
    # By hash: a change of the code takes few changes in or out.
    candidates.sort(key=lambda m: hashlib.sha256(f"{options.seed} {m.name}".encode()).digest())
    part, parts = (int(number) for number in options.shard.split("/"))
    return candidates[: options.sample][part - 1 :: parts], left_out


def _tree(shard: str) -> Path:
    """A copy of all files that are not ignored, and of the extension, to be changed."""
    tree = STORE / f"tree-{shard.replace('/', '-of-')}"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    extension = Path("python/penstock/_core.abi3.so")
    for name in [*listed.stdout.decode().splitlines(), str(extension)]:
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name == str(extension):
            target.symlink_to(source)
        elif source.exists() or source.is_symlink():
            shutil.copy(source, target, follow_symlinks=False)
    return tree


@contextlib.contextmanager
def _importable(tree: Path) -> Any:
    """Tests and the processes that they start import the copy; no bytecode outlives a change."""
    path = os.pathsep.join([str(tree / "python"), str(tree / "kernels")])
    os.environ.update(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    sys.dont_write_bytecode = True
    yield


def _test_all(chosen: list[Mutant], table: Map, results: Path, options: argparse.Namespace) -> None:
    for name in WARM:
        importlib.import_module(name)
    known = _read(results)
    begun = time.monotonic()
    for number, mutant in enumerate(chosen, 1):
        result = known.get(mutant.name)
        if options.again is not None:
            skipped = options.again not in json.dumps(result)
        else:
            skipped = result is not None
        if skipped:
            continue
        if time.monotonic() - begun > options.minutes * 60:
            break
        found = _test(mutant, table, options.seconds)
        _say(f"{number}/{len(chosen)} {found['result']} ({found['by']}): {mutant.name}")
        with results.open("a") as file:
            file.write(json.dumps({"name": mutant.name, **found}) + "\n")


def _test(mutant: Mutant, table: Map, most: float) -> dict[str, Any]:
    """What the tests say of one change: caught, survived, timeout or untested."""
    tests, total = [], 0.0
    for test, seconds in table.covering(mutant.path, mutant.first, mutant.last).items():
        if tests and total + seconds > most:
            break
        tests.append(test)
        total += seconds
    if not tests:
        return {"result": "untested", "by": "no test runs the line"}
    path = table.tree / mutant.path
    original = path.read_text()
    log = table.tree.with_suffix(".log")
    path.write_text(mutated(table.tree, mutant))
    try:
        begun = time.monotonic()
        status = _run(table.tree, tests, log, 3 * total + SLACK)
        taken = round(time.monotonic() - begun, 1)
    finally:
        path.write_text(original)
    lines = log.read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    names = {0: "survived", 1: "caught", 2: "caught", None: "timeout"}
    by = failed[-1].partition(" - ")[0] if failed else f"{len(tests)} tests"
    return {"result": names[status], "by": by, "seconds": taken}


def _run(tree: Path, tests: list[str], log: Path, limit: float) -> int | None:
    """pytest's exit status, of a fork of this process; None if the time was over."""
    child = os.fork()
    if child == 0:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        sys.path[:] = [str(tree / "python"), str(tree / "kernels"), *sys.path[1:]]
        pytest = importlib.import_module("pytest")
        arguments = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", f"--timeout={limit:.0f}"]
        os._exit(int(pytest.main([*arguments, *tests])))
    until = time.monotonic() + limit
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _read(results: Path) -> dict[str, dict[str, Any]]:
    """The last result of each change by its name."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {found["name"]: found for found in map(json.loads, lines)}


def _report(chosen: list[Mutant], left_out: Counter[str], known: dict[str, dict[str, Any]]) -> None:
    found = {m: known[m.name]["result"] for m in chosen if m.name in known}
    for mutant, result in sorted(found.items(), key=lambda pair: pair[0].name):
        if result in ("survived", "untested"):
            _say(f"{result}: line {mutant.first}: {mutant.name}")
    counts = Counter(found.values())
    caught, all_ = counts["caught"] + counts["timeout"], len(found)
    low, high = interval(caught, all_)
    _say(f"{all_} of {len(chosen)} changes tested: {dict(counts)}; left out: {dict(left_out)}")
    _say(f"caught: {caught / max(all_, 1):.1%} (95 % interval {low:.1%} to {high:.1%})")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
