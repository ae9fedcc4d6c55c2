"""Two minutes of `make faults`: no stream is broken or changed, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.run import Plan, run
from tests.faults.schedule import Kind

# Without those that take 30 s, and without the launcher's end, which tests/e2e has.
QUICK = [
    Kind.KILL, Kind.SEGV, Kind.RAISE, Kind.OOM, Kind.CLOSE, Kind.GARBAGE, Kind.STRANGER,
    Kind.DISK, Kind.CLOCK, Kind.TWICE,
]  # fmt: skip


@pytest.mark.parametrize(
    "plan",
    [
        Plan(seed=11, kinds=QUICK, requests=18, most=8),
        Plan(seed=12, kinds=[Kind.KILL, Kind.RAISE], world_size=2, requests=18, most=2),
    ],
    ids=["1 worker", "2 workers"],
)
def test_streams_survive_what_happens_to_workers(plan: Plan, tmp_path: Path) -> None:
    report = run(plan, tmp_path / "serve.log", [])
    assert report.good, report.text()
    assert report.losses > 0 and report.streams_hit > 0, report.text()
