"""Which tests run which lines: a pytest plugin that tells coverage, and the map that comes of it.

A line that a test runs in its own process counts for this test. A line that runs in a fixture, or
in a process that a test starts (a worker of a group), counts for all tests of the file, which may
share it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CONFIG = """[run]
context = ${MUTANTS_FILE}
data_file = ${MUTANTS_DATA}
parallel = true
patch = _exit
include =
    */penstock/worker/*
    */penstock/layers/*
"""
BATCH = 12  # test files in one run; what is known is kept after each
seconds: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logstart(nodeid: str) -> None:
    """What this test starts knows the test's file."""
    os.environ["MUTANTS_FILE"] = nodeid.partition("::")[0]
    _switch(os.environ["MUTANTS_FILE"])


def pytest_runtest_call(item: Any) -> None:
    """From here on, the test itself runs."""
    _switch(item.nodeid)


def pytest_runtest_teardown(item: Any) -> None:
    """What fixtures do at their end is the file's again."""
    _switch(os.environ["MUTANTS_FILE"])


def pytest_runtest_logreport(report: Any) -> None:
    """How long a test takes, with what is made for it; nothing for those that are skipped."""
    if report.passed:
        seconds[report.nodeid] += report.duration
    elif report.skipped:
        seconds.pop(report.nodeid, None)


def pytest_sessionfinish() -> None:
    """Leaves the times beside coverage's data."""
    Path(os.environ["MUTANTS_DATA"] + ".json").write_text(json.dumps(seconds))


def _switch(context: str) -> None:
    import coverage

    current = coverage.Coverage.current()
    assert current is not None, "coverage has been started by COVERAGE_PROCESS_START"
    current.switch_context(context)


class Map:
    """What each test file runs; files that have changed are run again."""

    def __init__(self, store: Path, tree: Path, sources: list[str]) -> None:
        self.store = store
        self.tree = tree
        self.sources = sources
        self.files: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}

    def refresh(self, tests: Iterable[str]) -> None:
        """Runs the test files that are not in the map as they are now; all must pass."""
        code = b"".join((self.tree / path).read_bytes() for path in self.sources)
        digests = {
            test: hashlib.sha256(code + (self.tree / test).read_bytes()).hexdigest()
            for test in tests
        }
        self.files = {t: f for t, f in self.files.items() if f["digest"] == digests.get(t)}
        missing = [test for test in digests if test not in self.files]
        for begin in range(0, len(missing), BATCH):
            batch = missing[begin : begin + BATCH]
            times, lines = self._run(batch)
            for file in batch:
                self.files[file] = {
                    "digest": digests[file],
                    "tests": {t: s for t, s in times.items() if t.partition("::")[0] == file},
                    "lines": {path: lines[path].get(file, {}) for path in self.sources},
                }
            self.store.write_text(json.dumps(self.files))

    def covering(self, path: str, first: int, last: int) -> dict[str, float]:
        """Seconds of the tests that run one of these lines, file by file, the quickest file first:
        tests of a file share what is made for them."""
        found = list[dict[str, float]]()
        for name, file in self.files.items():
            runs = set[str]()
            for line in range(first, last + 1):
                runs.update(file["lines"][path].get(str(line), ()))
            found.append({t: s for t, s in file["tests"].items() if name in runs or t in runs})
        found.sort(key=lambda tests: sum(tests.values()))
        return {test: seconds for tests in found for test, seconds in tests.items()}

    def _run(self, files: list[str]) -> tuple[dict[str, float], dict[str, Any]]:
        """Seconds by test; by source, test file and line, the tests or files that run it."""
        import coverage

        data = self.store.parent / "coverage"
        for old in data.parent.glob("coverage*"):
            old.unlink()
        config = self.store.with_suffix(".ini")
        config.write_text(CONFIG)
        environment = {
            **os.environ,
            "COVERAGE_PROCESS_START": str(config),
            "MUTANTS_DATA": str(data),
            "MUTANTS_FILE": "",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]]),
        }
        command = [sys.executable, "-m", "pytest", "-p", "cover", "-p", "no:cacheprovider", *files]
        subprocess.run(command, cwd=self.tree, env=environment, check=True)
        combined = coverage.CoverageData(str(data) + "-all")
        for part in data.parent.glob("coverage.*.*"):
            piece = coverage.CoverageData(str(part))
            piece.read()
            combined.update(piece)
        lines = dict[str, Any]()
        for path in self.sources:
            lines[path] = by_file = defaultdict[str, dict[str, list[str]]](dict)
            contexts = combined.contexts_by_lineno(str((self.tree / path).resolve()))
            for line, runs in contexts.items():
                for run in runs:
                    by_file[run.partition("::")[0]].setdefault(str(line), []).append(run)
        times = json.loads((data.parent / "coverage.json").read_text())
        return times, lines
