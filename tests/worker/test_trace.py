"""The timeline that a worker writes when it ends."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from checkpoints import checkpoint_maker, prompt
from driver import Driver, greedy
from local import LocalWorker


def test_a_step_shows_in_every_lane_and_in_order(tmp_path: Path) -> None:
    worker = LocalWorker()
    worker.shard.trace_file = tmp_path / "trace.json"
    loaded = worker.load(checkpoint_maker(tmp_path)("llama31"))
    driver = Driver([worker], loaded)  # type: ignore[list-item]
    sequence = greedy(prompt(9), 3)
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    worker.shard.close()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    assert list(lanes.values()) == ["inbox", "launch", "device", "reply"]
    assert [(e["name"], e["tid"]) for e in spans] == [
        (f"step {step}", lane) for step in range(3) for lane in lanes
    ]
    assert [e["args"]["tokens"] for e in spans if e["tid"] == 0] == [9, 1, 1]
    for before, after in itertools.pairwise(spans):
        assert after["name"] != before["name"] or after["ts"] >= before["ts"]
    assert all(e["dur"] >= 0 for e in spans)
